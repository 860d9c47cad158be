"""Class probabilities `[N, C, *spatial]` from what a model returns.

Owns where the numbers are in an output and what they mean. The class axis is 1 here; statistics and measures move it
to the end themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dropscope.errors import BadInput, Phrase, nearest

Outputs = str | Callable[[Any], Tensor]

KINDS = ("logits", "probabilities", "binary_logit", "multilabel_logits")


def probabilities(
    output: Any, outputs: Outputs = "logits", *, check: bool = True, labels: Sequence[Tensor] = ()
) -> Tensor:
    """Class probabilities `[N, C, *spatial]` of a model's output, in float32 (float64 stays).

    - `"logits"`: `[N, C, *spatial]`, softmax over axis 1.
    - `"probabilities"`: as they are.
    - `"binary_logit"`: `[N]`, `[N, 1]` or `[N, 1, *spatial]`, to two classes (1 − σ, σ).
    - `"multilabel_logits"`: `[N, K, *spatial]`, to `[N, 2, K, *spatial]`: two classes, yes and no, per label.
    - a callable: from what the model returned to probabilities `[N, C, *spatial]`.

    Args:
        output: What the model returned: a tensor, or something that holds it.
        outputs: What its numbers mean, as above.
        check: Whether to check the values, which waits for a GPU. Shape and type are always checked.
        labels: Labels of the data, in parts. They tell what an output of one column is, where that is refused.

    Returns:
        The probabilities.

    Raises:
        BadInput: If the output is not what `outputs` says.

    Examples:
        >>> probabilities(torch.tensor([[0.0, 0.0], [0.0, 200.0]])).tolist()
        [[0.5, 0.5], [0.0, 1.0]]
        >>> probabilities(torch.tensor([0.0]), "binary_logit").tolist()
        [[0.5, 0.5]]
    """
    if not callable(outputs) and outputs not in KINDS:
        what = f"outputs must be a function that returns probabilities [N, C, ...], or one of {', '.join(KINDS)}"
        raise BadInput(what, "outputs", outputs, nearest(str(outputs), KINDS))
    if callable(outputs):
        values = outputs(output)
        if not isinstance(values, Tensor):
            remedy = "return a tensor [N, C, ...]"
            got = Phrase(type(values).__name__)
            raise BadInput("outputs must return probabilities, if it is a function", "outputs", got, remedy)
    else:
        values = output_tensor(output, outputs)
    half = values.dtype in (torch.float16, torch.bfloat16)
    values = _floating(values)
    if check:
        _check_finite(values)
    if outputs == "binary_logit":
        return _binary(values)
    if outputs == "multilabel_logits":
        if values.dim() < 2:
            remedy = "for one label write outputs='binary_logit'"
            raise _misshapen("be [N, labels, ...] for outputs='multilabel_logits'", values, remedy)
        return torch.stack([(-values).sigmoid(), values.sigmoid()], 1)
    if values.dim() < 2 or values.shape[1] == 1:
        raise _misshapen("have at least two classes along axis 1", values, _one_column(values, labels))
    if outputs == "logits":
        if check and _look_like_probabilities(values):
            remedy = "write outputs='probabilities'; if these really are logits, outputs=lambda o: o.softmax(1)"
            what = "the model's output must be logits: a softmax of probabilities flattens them"
            raise BadInput(what, "outputs", Phrase("values in [0, 1] that sum to 1 over axis 1"), remedy)
        return _softmax(values)
    return _checked(values, half=half) if check else values


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


def _misshapen(rule: str, values: Tensor, remedy: str) -> BadInput:
    return BadInput(f"the model's output must {rule}", "outputs", Phrase(f"shape {tuple(values.shape)}"), remedy)


def _one_column(values: Tensor, labels: Sequence[Tensor]) -> str:
    """What to write where a model returns one number: a logit of two classes, their sigmoid, or a regression."""
    if values.dim() < 3 and any(bool(((part != 0) & (part != 1)).any()) for part in labels):
        return "use a classifier: regression is not supported yet, and labels other than 0 and 1 say this is one"
    sigmoid = bool(((values >= 0) & (values <= 1)).all())
    binary = "outputs='binary_logit' for a logit of class 1"
    binary += ", or outputs=lambda o: torch.stack([1 - o.flatten(), o.flatten()], 1) for its sigmoid" if sigmoid else ""
    return f"write {binary}" + ("" if labels else "; a regression is not supported yet")


_CLASSES_LAST = {"TokenClassifierOutput"}


def output_tensor(output: Any, kind: str) -> Tensor:
    """The tensor in what a model returned: itself, `.logits`, the entry of that name, the first of a tuple.

    Hugging Face's classifiers of tokens put the classes last; here they come behind the examples, as everywhere.
    """
    if isinstance(output, Tensor):
        return output
    names = ("probabilities", "probs", "logits") if kind == "probabilities" else ("logits",)
    keys = [str(key) for key in output.keys()] if hasattr(output, "keys") else []  # noqa: SIM118 - ModelOutput, too
    for name in names:
        value = output[name] if name in keys else getattr(output, name, None)
        if isinstance(value, Tensor):
            return value.movedim(-1, 1) if type(output).__name__ in _CLASSES_LAST and value.dim() > 2 else value
    if keys:
        tensors = [key for key in keys if isinstance(output[key], Tensor)]
        remedy = f"write outputs=lambda o: o[{(tensors or keys)[0]!r}].softmax(1), or the entry that holds them"
        what = f"the model's output must have an entry {names[0]!r}, if it is a dict"
        raise BadInput(what, "outputs", keys, remedy)
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    kinds = [type(part).__name__ for part in (output if isinstance(output, tuple | list) else [output])]
    remedy = "pass outputs=lambda o: ..., from what the model returns to probabilities [N, C, ...]"
    raise BadInput("the model's output must be a tensor or hold logits", "outputs", Phrase(", ".join(kinds)), remedy)


def _floating(values: Tensor) -> Tensor:
    if not values.is_floating_point():
        remedy = "return the logits, before any argmax or threshold"
        raise BadInput("the model's output must be floating-point", "outputs", values.dtype, remedy)
    if values.dim() == 0 or 0 in values.shape:
        remedy = "return [N, C, ...]; a loss comes first where labels are passed to the model, so leave them out"
        raise _misshapen("hold a row per example", values, remedy)
    return values if values.dtype == torch.float64 else values.float()


def _check_finite(values: Tensor) -> None:
    if bool(torch.isfinite(values.sum())):  # NaN and infinity survive a sum; a sum that overflows is examined below
        return
    bad = ~torch.isfinite(values).reshape(len(values), -1).all(1)
    if count := int(bad.sum()):
        got = f"{count} of {len(values)} examples with NaN or infinity (the first at {int(bad.int().argmax())})"
        remedy = "check those inputs, its weights and its precision: the model itself returns NaN or infinity"
        raise BadInput("the model's output must be finite", "model", Phrase(got), remedy)


def _binary(logit: Tensor) -> Tensor:
    logit = logit[:, None] if logit.dim() == 1 else logit
    if logit.shape[1] != 1:
        remedy = f"for {logit.shape[1]} classes write outputs='logits', for so many labels outputs='multilabel_logits'"
        raise _misshapen("be [N], [N, 1] or [N, 1, ...] for outputs='binary_logit'", logit, remedy)
    return torch.cat([(-logit).sigmoid(), logit.sigmoid()], 1)


def _look_like_probabilities(values: Tensor) -> bool:
    low, high = torch.aminmax(values)
    if not bool((low >= 0) & (high <= 1)):
        return False
    exact = ((values == 0) | (values == 1)).all()  # whole numbers say nothing: a toy model's logits may be one-hot
    return not bool(exact) and bool(((values.sum(1) - 1).abs() <= 1e-5).all())


def _checked(values: Tensor, *, half: bool) -> Tensor:
    range_slack, sum_slack = (1e-2, 1e-2) if half else (1e-5, 1e-3)
    low, high = (float(x) for x in torch.aminmax(values))
    remedy = "for raw scores write outputs='logits'; for independent labels outputs='multilabel_logits'"
    if low < -range_slack or high > 1 + range_slack:
        received = Phrase(f"values from {low:g} to {high:g}")
        raise BadInput("probabilities must lie in [0, 1]", "outputs", received, remedy)
    off = float((values.sum(1, dtype=torch.float64) - 1).abs().max())
    if off > sum_slack:
        received = Phrase(f"a sum that is off by {off:g}")
        raise BadInput("probabilities must sum to 1 over axis 1", "outputs", received, remedy)
    return values.clamp(0, 1) if low < 0 or high > 1 else values  # rounding just outside would break x log x
