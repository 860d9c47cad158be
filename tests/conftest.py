"""What every test may ask for: markers, and a check that a model and the random state are afterwards what they were."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

os.environ["DROPSCOPE_CAPTURE"] = "always"  # "auto" runs in tests what it runs in long runs
torch.set_num_threads(1)  # the models are tiny: a second thread only waits

_STUDIES = Path(__file__).parent / "studies"
_WHOLE_STUDIES = {"done", "whole"}  # fixtures that run one
_NEEDS_GPU = re.compile(r"^(needs|no) .*(GPU|CUDA|Triton)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Markers that follow from what a test is: `study` by folder, the others by what it needs."""
    for item in items:
        if _STUDIES in item.path.parents:
            item.add_marker("study")
            if _WHOLE_STUDIES & set(getattr(item, "fixturenames", ())):
                item.add_marker("slow")
        if any(_NEEDS_GPU.match(mark.kwargs.get("reason", "")) for mark in item.iter_markers("skipif")):
            item.add_marker("gpu")
        if _reads_data(item):
            item.add_marker("data")


def _reads_data(item: pytest.Item) -> bool:
    """Whether the test, or a fixture it uses, asks for DROPSCOPE_DATA."""
    if not isinstance(item, pytest.Function):
        return False
    fixtures = [found.func for defined in item._fixtureinfo.name2fixturedefs.values() for found in defined]
    codes = [getattr(function, "__code__", None) for function in (item.function, *fixtures)]
    return any("DROPSCOPE_DATA" in code.co_consts for code in codes if code is not None)


Untouched = Callable[[nn.Module], AbstractContextManager[None]]


@pytest.fixture
def untouched() -> Untouched:
    """A context in which anything may happen to a model, and after which nothing has (R10, R11)."""

    @contextmanager
    def context(model: nn.Module) -> Iterator[None]:
        before = _everything(model)
        try:
            yield
        finally:
            after = _everything(model)
            changed = [name for name in before if before[name] != after[name]]
            assert not changed, f"changed: {changed}"

    return context


def _everything(model: nn.Module) -> dict[str, object]:
    """Every byte of the state, every flag and hook, and the global random states, as values to compare."""
    seen: dict[str, object] = {
        f"state {name}": value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        for name, value in model.state_dict().items()
    }
    for name, parameter in model.named_parameters():
        seen[f"parameter {name}"] = (id(parameter), parameter.requires_grad, parameter._version)
    for name, module in model.named_modules():
        hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
        extra = (module._forward_hooks_with_kwargs, module._forward_hooks_always_called)
        seen[f"flag {name}"] = module.training
        seen[f"hooks {name}"] = [list(registered) for registered in (*hooks, *extra)]
        seen[f"attributes {name}"] = sorted(vars(module))
    seen["torch random state"] = torch.get_rng_state().numpy().tobytes()
    seen["numpy random state"] = repr(np.random.get_state())  # noqa: NPY002 - the global state is what must not move
    seen["python random state"] = random.getstate()
    seen["function modes"] = torch._C._len_torch_function_stack()
    return seen
