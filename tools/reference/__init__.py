"""Generators of the pages in docs/reference, which read the code's tables, signatures and docstrings."""
