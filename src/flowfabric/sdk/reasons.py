"""Why a value could not be stored or read, in a sentence instead of pydantic's report."""

from __future__ import annotations

import re

from pydantic import ValidationError

_MOST = 3
_LENGTH = 500
_UNEXPECTED = re.compile(r"Expected `(?P<kind>.+?)`.*?input_value=(?P<value>.*), input_type=(?P<type>\w+)\]")
_OWN_BYTES = (
    "a pydantic model with binary bytes needs ser_json_bytes='base64' and val_json_bytes='base64' in its model_config"
)
_OWN_FLOATS = "a pydantic model with NaN or infinities needs ser_json_inf_nan='strings' in its model_config"


def reason(error: Exception) -> str:
    """What is wrong, in short, and what to do where that is known."""
    if isinstance(error, ValidationError):
        return _invalid(error)
    text = str(error) or type(error).__name__
    if found := list(_UNEXPECTED.finditer(text)):
        text = "; ".join(f"expected {one['kind']}, got {one['value']} ({one['type']})" for one in found[:_MOST])
    if "invalid utf-8" in text:
        text = f"{text}; {_OWN_BYTES}"
    return text[:_LENGTH]


def _invalid(error: ValidationError) -> str:
    problems = error.errors(include_url=False)
    said = [f"{_place(problem['loc'])}{problem['msg']}" for problem in problems[:_MOST]]
    if len(problems) > _MOST:
        said.append(f"and {len(problems) - _MOST} more")
    if any(problem["type"] == "float_type" and problem["input"] is None for problem in problems):
        said.append(_OWN_FLOATS)
    return "; ".join(said)[:_LENGTH]


def _place(loc: tuple[int | str, ...]) -> str:
    """Where in the value; the first part is its place in the tuple of one."""
    return "".join(f"{part}: " if number == len(loc) else f"{part}." for number, part in enumerate(loc[1:], start=2))
