"""What a model returns → class probabilities `[N, C, *spatial]`, class axis 1.

Owns how an output is found in what the model gave back and what its numbers mean. Statistics and measures put the
class axis last; turning it there is theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dropscope.errors import BadInput, nearest

Outputs = str | Callable[[Any], Tensor]

KINDS = ("logits", "probabilities", "binary_logit", "multilabel_logits")


def probabilities(output: Any, outputs: Outputs = "logits", *, check: bool = True) -> Tensor:
    """Class probabilities `[N, C, *spatial]` of a model's output, in float32 (float64 stays).

    - `"logits"`: `[N, C, *spatial]`, softmax over axis 1.
    - `"probabilities"`: as they are.
    - `"binary_logit"`: `[N]`, `[N, 1]` or `[N, 1, *spatial]`, to two classes (1 − σ, σ).
    - `"multilabel_logits"`: `[N, K, *spatial]`, to `[N, 2, K, *spatial]`: a question of two classes per label.
    - a callable: from what the model returned to probabilities `[N, C, *spatial]`.

    `check=False` leaves out the looks at the values (on a GPU, a wait each), never those at shape and type.

    >>> probabilities(torch.tensor([[0.0, 0.0], [0.0, 200.0]])).tolist()
    [[0.5, 0.5], [0.0, 1.0]]
    >>> probabilities(torch.tensor([0.0]), "binary_logit").tolist()
    [[0.5, 0.5]]
    """
    if not callable(outputs) and outputs not in KINDS:
        remedy = nearest(str(outputs), KINDS) + ", or pass a function of the output that returns probabilities [N, C]"
        raise BadInput("outputs says what the model returns", "outputs", outputs, remedy)
    if callable(outputs):
        values = outputs(output)
        if not isinstance(values, Tensor):
            remedy = "return a tensor [N, C, ...]"
            raise BadInput(
                "a function for outputs returns probabilities", "outputs(...)", type(values).__name__, remedy
            )
    else:
        values = _found(output, outputs)
    half = values.dtype in (torch.float16, torch.bfloat16)
    values = _floating(values)
    if check:
        _check_finite(values)
    if outputs == "binary_logit":
        return _binary(values)
    if outputs == "multilabel_logits":
        if values.dim() < 2:
            remedy = "for one label write outputs='binary_logit'"
            raise BadInput("multilabel logits are [N, labels, ...]", "shape of the output", tuple(values.shape), remedy)
        return torch.stack([(-values).sigmoid(), values.sigmoid()], 1)
    if values.dim() < 2 or values.shape[1] == 1:
        wrong = "for one logit per example write outputs='binary_logit'; for its sigmoid, "
        remedy = wrong + "outputs=lambda o: torch.stack([1 - o.flatten(), o.flatten()], 1)"
        raise BadInput("an output has at least two classes along axis 1", "its shape", tuple(values.shape), remedy)
    if outputs == "logits":
        if check and _look_like_probabilities(values):
            remedy = "write outputs='probabilities'; if these really are logits, outputs=lambda o: o.softmax(1)"
            rule = "logits are not probabilities already (softmax twice flattens them)"
            raise BadInput(rule, "the output", "values in [0, 1] that sum to 1 over axis 1", remedy)
        return _softmax(values)
    return _checked(values, half) if check else values


def _softmax(logits: Tensor) -> Tensor:
    """softmax over axis 1. On a CPU, torch's own takes three times as long over few classes as these four steps."""
    if logits.device.type != "cpu" or logits.dim() > 2:
        return logits.softmax(1)
    raised = (logits - logits.amax(1, keepdim=True)).exp_()
    return raised.div_(raised.sum(1, keepdim=True))


def classes(probabilities: Tensor) -> int:
    """How many classes `probabilities[N, C, *spatial]` are over."""
    return probabilities.shape[1]


def predictions(probabilities: Tensor) -> Tensor:
    """The most probable class, `[N, *spatial]`; the first of equals."""
    return probabilities.argmax(1)


def _found(output: Any, kind: str) -> Tensor:
    """The tensor in what a model returned: itself, `.logits`, the entry of that name, the first of a tuple."""
    if isinstance(output, Tensor):
        return output
    names = ("probabilities", "probs", "logits") if kind == "probabilities" else ("logits",)
    keys = [str(key) for key in output.keys()] if hasattr(output, "keys") else []  # noqa: SIM118 - ModelOutput, too
    for name in names:
        value = output[name] if name in keys else getattr(output, name, None)
        if isinstance(value, Tensor):
            return value
    if keys:
        tensors = [key for key in keys if isinstance(output[key], Tensor)]
        remedy = f"write outputs=lambda o: o[{(tensors or keys)[0]!r}].softmax(1), or the entry that holds them"
        raise BadInput(f"a dict of outputs has an entry {names[0]!r}", "keys of the output", keys, remedy)
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    got = [type(part).__name__ for part in output] if isinstance(output, tuple | list) else type(output).__name__
    remedy = "pass outputs=lambda o: ..., from what the model returns to probabilities [N, C, ...]"
    raise BadInput("a model returns a tensor, or something that holds logits", "the output", got, remedy)


def _floating(values: Tensor) -> Tensor:
    if not values.is_floating_point():
        remedy = "return the logits, before any argmax or threshold"
        raise BadInput("an output is a floating tensor", "its dtype", values.dtype, remedy)
    if values.dim() == 0 or 0 in values.shape:
        remedy = "return [N, C, ...]; a loss comes first where labels are passed to the model, so leave them out"
        raise BadInput("an output holds a row per example", "its shape", tuple(values.shape), remedy)
    return values if values.dtype == torch.float64 else values.float()


def _check_finite(values: Tensor) -> None:
    if bool(torch.isfinite(values.sum())):  # NaN and infinity survive a sum; one that overflows is looked at closely
        return
    bad = ~torch.isfinite(values).reshape(len(values), -1).all(1)
    if count := int(bad.sum()):
        got = f"{count} of {len(values)} examples with NaN or infinity (the first at {int(bad.int().argmax())})"
        remedy = "the model itself returns NaN or infinity here: look at those inputs, at its weights and its precision"
        raise BadInput("an output is finite", "the output", got, remedy)


def _binary(logit: Tensor) -> Tensor:
    logit = logit[:, None] if logit.dim() == 1 else logit
    if logit.shape[1] != 1:
        remedy = f"for {logit.shape[1]} classes write outputs='logits', for so many labels outputs='multilabel_logits'"
        raise BadInput("a binary logit is [N], [N, 1] or [N, 1, ...]", "its shape", tuple(logit.shape), remedy)
    return torch.cat([(-logit).sigmoid(), logit.sigmoid()], 1)


def _look_like_probabilities(values: Tensor) -> bool:
    low, high = torch.aminmax(values)
    if not bool((low >= 0) & (high <= 1)):
        return False
    exact = ((values == 0) | (values == 1)).all()  # whole numbers say nothing: a toy model's logits may be one-hot
    return not bool(exact) and bool(((values.sum(1) - 1).abs() <= 1e-5).all())


def _checked(values: Tensor, half: bool) -> Tensor:
    range_slack, sum_slack = (1e-2, 1e-2) if half else (1e-5, 1e-3)
    low, high = (float(x) for x in torch.aminmax(values))
    remedy = "for raw scores write outputs='logits'; for independent labels outputs='multilabel_logits'"
    if low < -range_slack or high > 1 + range_slack:
        raise BadInput("probabilities lie in [0, 1]", "the output (smallest, largest)", (low, high), remedy)
    off = float((values.sum(1, dtype=torch.float64) - 1).abs().max())
    if off > sum_slack:
        raise BadInput("probabilities sum to 1 over axis 1", "the largest difference from 1", off, remedy)
    return values.clamp(0, 1) if low < 0 or high > 1 else values  # rounding just outside would break x log x
