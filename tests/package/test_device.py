"""Devices and memory budgets: what a machine has, and one clear error if it does not."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch

from dropscope.device import as_device, free_bytes, memory_bytes, runs_kernels
from support.errors import refused

CPU = torch.device("cpu")
MIB = 1 << 20


def test_there_are_no_kernels_on_a_cpu() -> None:
    assert not runs_kernels(CPU)


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), torch.device("cpu", 0)])
def test_a_device_is_accepted_by_name_and_as_itself(device: str | torch.device) -> None:
    assert as_device(device).type == "cpu"


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert as_device(None) == CPU
    with refused("device") as caught:
        as_device("cuda")
    assert caught.value.received == "cuda"
    assert "device='cpu'" in caught.value.remedy
    with refused("device") as caught:
        as_device("gpu")
    assert caught.value.received == "gpu"


@pytest.mark.parametrize("device", ["xla", "vulkan", "hpu", "meta", "mkldnn", "privateuseone"])
def test_a_device_that_torch_knows_without_having_it_is_refused(device: str) -> None:
    with refused("device") as caught:
        as_device(device)
    assert caught.value.received == device


def test_a_gpu_gets_its_index_and_one_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert as_device(None) == as_device("cuda") == torch.device("cuda", 1)
    assert as_device("cuda:0") == torch.device("cuda", 0)
    with refused("device") as caught:
        as_device("cuda:2")
    assert caught.value.received == "cuda:2"


def _control_group(folder: Path, limit: str, used: str) -> tuple[str, str]:
    (folder / "limit").write_text(limit + "\n")
    (folder / "used").write_text(used + "\n")
    return str(folder / "limit"), str(folder / "used")


def test_free_memory_stays_within_the_limit_of_a_container(tmp_path: Path) -> None:
    group = _control_group(tmp_path, str(64 * MIB), str(24 * MIB))
    assert free_bytes(CPU, [group]) == int(40 * MIB * 0.6)
    assert free_bytes(CPU, [("/no/such/file", "/no/such/file"), group]) == int(40 * MIB * 0.6)


def test_a_full_container_leaves_a_little(tmp_path: Path) -> None:
    assert free_bytes(CPU, [_control_group(tmp_path, str(64 * MIB), str(70 * MIB))]) == int(MIB * 0.6)


@pytest.mark.parametrize("limit", ["max", "not a number", str(1 << 62)])
def test_without_a_limit_it_is_the_memory_of_the_machine(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 100 * MIB}))
    assert free_bytes(CPU, [_control_group(tmp_path, limit, "0")]) == 60 * MIB
    assert free_bytes(CPU, []) == 60 * MIB


@pytest.mark.parametrize(
    ("memory", "size"),
    [("4GiB", 4 << 30), (" 1.5 gib ", 3 << 29), ("2MB", 2_000_000), (5 * MIB, 5 * MIB), ("2048 KiB", 2 * MIB)],
)
def test_a_budget_is_bytes_or_a_text(memory: int | str, size: int) -> None:
    assert memory_bytes(memory, CPU) == size


@pytest.mark.parametrize("memory", ["", "much", "4 XiB", "1KiB", 0, -1, "nan", "1e999GiB"])
def test_a_budget_that_holds_nothing_is_refused(memory: int | str) -> None:
    with refused("memory") as caught:
        memory_bytes(memory, CPU)
    assert caught.value.received == memory
