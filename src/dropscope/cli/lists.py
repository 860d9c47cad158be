"""Options that hold several values, joined by commas."""

from __future__ import annotations

from dropscope.errors import BadInput


def words(text: str) -> list[str]:
    """The values, without blanks around them.

    >>> words("conv2, fc1,")
    ['conv2', 'fc1']
    """
    return [part.strip() for part in text.split(",") if part.strip()]


def whole_numbers(text: str, option: str) -> list[int]:
    try:
        return [int(part) for part in words(text)]
    except ValueError as error:
        raise BadInput("this option takes whole numbers", option, text, f"write {option} 5,15") from error


def numbers(text: str, option: str) -> list[float]:
    try:
        return [float(part) for part in words(text)]
    except ValueError as error:
        raise BadInput("this option takes numbers", option, text, f"write {option} 0.1,0.5") from error
