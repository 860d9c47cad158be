"""What a refused argument looks like to a test: the argument's name, never the sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dropscope.errors import BadInput


@contextmanager
def refused(name: str) -> Iterator[pytest.ExceptionInfo[BadInput]]:
    """Passes where the block raises `BadInput` about the argument `name`."""
    with pytest.raises(BadInput) as caught:
        yield caught
    assert caught.value.name == name, str(caught.value)
