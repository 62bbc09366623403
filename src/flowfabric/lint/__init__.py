"""`flowfabric check`: find code in tasks and steps that misbehaves when it runs again."""

from flowfabric.lint.check import CODES, Finding, check_file, check_text

__all__ = ["CODES", "Finding", "check_file", "check_text"]
