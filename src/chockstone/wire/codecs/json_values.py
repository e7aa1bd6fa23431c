"""JSON values: reads a value as an expected type, or raises BadRequest that names it.

For the few messages that are too large or too free for a pydantic model. Each function takes the name of the value;
the BadRequest starts with it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from chockstone.wire.failures import BadRequest

LOWEST = -(2**63)
HIGHEST = 2**63 - 1


def describe(value: object) -> str:
    """What JSON calls it, or the value itself where that is short."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() if value.bit_length() > 100:
            return "an integer of more than 100 bits"  # printing it could take very long
        case int() | float() | str():
            return f"{value!r:.80}"
        case list() | tuple():
            return "a list"
        case _:
            return "an object"


def read_object(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRequest(f"{name} must be an object, not {describe(value)}.")
    return value


def read_text(value: object, name: str, *, may_be_empty: bool = False) -> str:
    if not isinstance(value, str):
        raise BadRequest(f"{name} must be a string, not {describe(value)}.")
    if not value and not may_be_empty:
        raise BadRequest(f"{name} must not be empty.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"{name} is not Unicode text: {error.reason}.") from error
    return value


def read_bool(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise BadRequest(f"{name} must be true or false, not {describe(value)}.")
    return value


def read_integer(value: object, name: str, *, low: int = LOWEST, high: int = HIGHEST) -> int:
    if type(value) is not int or not low <= value <= high:
        raise BadRequest(f"{name} must be an integer between {low} and {high}, not {describe(value)}.")
    return value


def read_number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(f"{name} must be a number, not {describe(value)}.")
    try:
        number = float(value)
    except OverflowError as error:
        raise BadRequest(f"{name} must be a number, not {describe(value)}.") from error
    if not math.isfinite(number):
        raise BadRequest(f"{name} must be finite, not {number}.")
    return number


def read_integers(value: object, name: str, *, low: int = LOWEST, high: int = HIGHEST) -> npt.NDArray[np.int64]:
    if not isinstance(value, list):
        raise BadRequest(f"{name} must be a list of integers, not {describe(value)}.")
    if not set(map(type, value)) <= {int} or (value and not low <= min(value) <= max(value) <= high):
        for index, element in enumerate(value):
            read_integer(element, f"{name}[{index}]", low=low, high=high)
    return np.array(value, dtype=np.int64)


def read_floats(value: object, name: str) -> npt.NDArray[np.float32]:
    """Rounded to float32. Numbers out of its range become infinite; ``check_finite`` refuses them later."""
    if not isinstance(value, list):
        raise BadRequest(f"{name} must be a list of numbers, not {describe(value)}.")
    if not set(map(type, value)) <= {int, float}:
        for index, element in enumerate(value):
            read_number(element, f"{name}[{index}]")
    with np.errstate(over="ignore"):
        try:
            return np.array(value, dtype=np.float32)
        except OverflowError as error:
            raise BadRequest(f"{name} has an integer that is too large for float32.") from error
