"""What a machine can do, and the one error where it cannot."""

from __future__ import annotations

import pytest
import torch

from dropscope import device as machine
from dropscope.errors import BadInput


def test_there_are_no_kernels_on_a_cpu() -> None:
    assert not machine.runs_kernels(torch.device("cpu"))


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert machine.as_device(None) == torch.device("cpu")
    with pytest.raises(BadInput, match="this machine has"):
        machine.as_device("cuda")
    with pytest.raises(BadInput, match="torch knows"):
        machine.as_device("gpu")
