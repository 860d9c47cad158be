"""Weights of a network from a file: safetensors or a plain state_dict, names and shapes checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from dropscope.errors import BadInput, Phrase, first_line
from dropscope.loading.inspection import check_archive, check_safetensors


def load_weights(net: nn.Module, path: Path) -> nn.Module:
    """Weights from safetensors or a plain state_dict, names and shapes checked; the network is in eval mode."""
    state = _read_state(path)
    wanted = {name: tuple(value.shape) for name, value in net.state_dict().items()}
    received = {name: tuple(value.shape) for name, value in state.items()}
    for name in sorted({*wanted, *received}):
        if wanted.get(name) != received.get(name):
            here, there = (str(shapes.get(name, "absent")) for shapes in (wanted, received))
            remedy = f"pass weights in which {name!r} is {here}"
            raise BadInput(f"weights must fit the network: {name!r} in {path}", "weights", Phrase(there), remedy)
    net.load_state_dict(state)
    return net.eval()


def _read_state(path: Path) -> dict[str, Tensor]:
    """Tensors by name. A pickle is read with `weights_only`, so that no code in it runs."""
    state: Any
    try:
        if path.suffix == ".safetensors":
            check_safetensors(path)
            state = load_file(path)
        else:
            check_archive(path)
            state = torch.load(path, "cpu", weights_only=True)
    except FileNotFoundError as error:
        raise BadInput("weights must be an existing file", "weights", str(path), "check the path") from error
    except Exception as error:
        # Torch advises to unpickle a pickled model all the same; its message is not passed on.
        pickled = "weights only load failed" in str(error).lower()
        reason = "a pickled object that is not only tensors" if pickled else first_line(error)
        what, remedy = "weights must be safetensors or a plain state_dict", "save model.state_dict() with torch.save"
        raise BadInput(what, "weights", Phrase(f"{path}: {reason}"), remedy) from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        got = Phrase(f"{path}: {type(state).__name__}")
        raise BadInput("weights must be a dict of tensors", "weights", got, "save model.state_dict()")
    return state
