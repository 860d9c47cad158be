"""Scores of given continuations: the log-probability of each token and sequence, and its spread over passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from dropscope.checks import check_choice, check_passes
from dropscope.errors import BadInput, Phrase
from dropscope.injection import injected
from dropscope.model import Call, accepted, device_of, evaluating, unwrap
from dropscope.placement import Placement

LEVELS = ("sequence", "token")
_UNSCORED = -100  # as Hugging Face marks labels that do not count


def score_continuations(
    model: nn.Module, placement: Placement | str, inputs: Any, passes: int = 100, *, per: str = "sequence",
    seed: int = 0, ids: Sequence[Any] | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Log-probabilities of continuations that are given, by teacher forcing: every pass sees the whole sequence once.

    Args:
        model: A language model of `transformers`: a decoder, or an encoder and a decoder. It is left as it was.
        placement: Which sites get which noise at which rate, such as "last=0.1" or "own".
        inputs: One batch as a dict: what the model takes, and `labels` as in its training. For a decoder, `input_ids`
            of prompt and continuation, with -100 in `labels` where a token is not to be scored; else the target tokens.
        passes: How many stochastic forwards.
        per: "sequence" for a row per sequence, "token" for a row per scored token.
        seed: The seed of the noise.
        ids: One id per sequence, which keys its masks. None: the fingerprint of its inputs.

    Returns:
        `id` (or the row in the batch) and `tokens`, or `position` in the labels and `token`; log-probabilities `plain`
        (without noise), `mean` and `std` over passes, and `predictive` (of the probability averaged over passes).

    Raises:
        BadInput: If an argument cannot be used, or the placement does not fit the model.

    Examples:
        >>> class Unigram(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.embed, self.head = nn.Embedding(5, 8), nn.Linear(8, 5)
        ...     def forward(self, input_ids):
        ...         return {"logits": self.head(self.embed(input_ids))}
        >>> batch = {"input_ids": torch.tensor([[1, 2, 3]]), "labels": torch.tensor([[-100, 2, 3]])}
        >>> table = score_continuations(Unigram(), "embed=0.2", batch, passes=5)
        >>> list(table.columns), table.tokens.tolist()
        (['id', 'tokens', 'plain', 'mean', 'std', 'predictive'], [2])
    """
    check_passes(passes)
    check_choice(per, "per", LEVELS)
    model = unwrap(model)
    call, labels, shift = _teacher_forced(model, inputs)
    scored = labels != _UNSCORED
    with torch.no_grad(), accepted(call, "inputs"):
        with evaluating(model):
            plain = _log_probabilities(call.run(model), labels, shift)
        with injected(model, placement, seed) as noise:
            drawn = []
            for number in range(passes):
                noise.at(number, ids)
                drawn.append(_log_probabilities(call.run(model), labels, shift))
    values = torch.stack([plain, *drawn])
    names = list(range(len(labels))) if ids is None else list(ids)
    if per == "sequence":
        values = values.sum(2)
        table: dict[str, Any] = {"id": names, "tokens": scored.sum(1).tolist()}
    else:
        rows, places = scored.nonzero(as_tuple=True)
        values = values[:, rows, places]
        table = {"id": [names[row] for row in rows.tolist()], "position": (places + shift).tolist()}
        table["token"] = labels[rows, places].tolist()
    own, over = values[0], values[1:]
    predictive = over.logsumexp(0) - math.log(passes)
    spread = over.std(0) if passes > 1 else torch.full_like(own, math.nan)
    columns = {"plain": own, "mean": over.mean(0), "std": spread, "predictive": predictive}
    return pd.DataFrame(table | {name: column.numpy() for name, column in columns.items()})


def _teacher_forced(model: nn.Module, inputs: Any) -> tuple[Call, Tensor, int]:
    """The call, the tokens to score, and how many positions a logit stands before its token."""
    labels = inputs["labels"] if hasattr(inputs, "keys") and "labels" in inputs else None
    if not isinstance(labels, Tensor) or labels.dim() != 2 or labels.is_floating_point():
        what, remedy = "inputs must be a dict with labels [N, L]", "add the tokens to score, and -100 for all others"
        raise BadInput(what, "inputs", Phrase("none" if labels is None else type(labels).__name__), remedy)
    two_parts = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    call = Call.of(inputs, "inputs").to(device_of(model))
    if two_parts and "decoder_input_ids" not in call.kwargs:
        shifted: Any = model.prepare_decoder_input_ids_from_labels
        call = Call(call.args, {**call.kwargs, "decoder_input_ids": shifted(labels=labels.to(device_of(model)))})
    shift = 0 if two_parts else 1
    labels = labels[:, shift:].cpu()
    if not bool((labels != _UNSCORED).any(1).all()):
        what = "labels must hold a token to score in every sequence" + ("" if two_parts else ", after its first")
        raise BadInput(what, "inputs", Phrase(f"only {_UNSCORED} in one"), "leave sequences without one out")
    return call, labels, shift


def _log_probabilities(output: Any, labels: Tensor, shift: int) -> Tensor:
    """Of each label, float64 `[N, L]`; 0 where it does not count."""
    logits = output["logits"] if hasattr(output, "keys") else output
    logits = logits[:, : logits.shape[1] - shift]
    if tuple(logits.shape[:2]) != tuple(labels.shape):
        received = Phrase(f"labels for {tuple(labels.shape)} and logits for {tuple(logits.shape[:2])} tokens")
        raise BadInput("labels must hold one token per logit", "inputs", received, "give labels the shape of input_ids")
    chosen = labels.clamp(min=0).to(logits.device).unsqueeze(-1)
    found = logits.double().log_softmax(-1).gather(-1, chosen).squeeze(-1).cpu()
    return found.where(labels != _UNSCORED, 0.0)
