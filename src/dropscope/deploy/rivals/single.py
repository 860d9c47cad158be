"""Rivals of one plain pass that fit nothing: functions of its probabilities or logits."""

from __future__ import annotations

import torch
from torch import Tensor

from dropscope import measures
from dropscope.deploy.rivals.forwards import PlainPass
from dropscope.errors import BadInput, Phrase

_EXPONENT, _TOP = 0.1, 100  # of the generalised entropy, as its authors set them


def max_probability(seen: PlainPass) -> Tensor:
    """1 − max_c p: the reference (Hendrycks and Gimpel 2017)."""
    return measures.plain_max_probability(seen.probabilities)


def entropy(seen: PlainPass) -> Tensor:
    """−Σ_c p log p (Shannon 1948)."""
    return measures.plain_entropy(seen.probabilities)


def margin(seen: PlainPass) -> Tensor:
    """1 − (p₁ − p₂), the two highest probabilities (Scheffer et al. 2001)."""
    return measures.plain_margin(seen.probabilities)


def max_logit(seen: PlainPass) -> Tensor:
    """−max_c z, the highest logit (Hendrycks et al. 2022)."""
    return -logits_of(seen, "max_logit").amax(1)


def energy(seen: PlainPass) -> Tensor:
    """−log Σ_c exp z (Liu et al. 2020)."""
    return -logits_of(seen, "energy").logsumexp(1)


def generalised_entropy(seen: PlainPass) -> Tensor:
    """Σ pᵞ (1 − p)ᵞ over the 100 highest probabilities, γ = 0.1 (Liu et al. 2023)."""
    p = seen.probabilities.double().clamp(0, 1)
    top = p.topk(min(_TOP, p.shape[1]), 1).values
    return (top**_EXPONENT * (1 - top) ** _EXPONENT).sum(1)


def logits_of(seen: PlainPass, name: str) -> Tensor:
    """The logits of a plain pass.

    Raises:
        BadInput: Where the model returns probabilities, which do not say how large its logits were.
    """
    if seen.logits is None:
        received = Phrase(
            f"outputs={seen.session.outputs!r}" if isinstance(seen.session.outputs, str) else "a function"
        )
        remedy = f"leave {name} out, or take the logits before the softmax with outputs='logits'"
        raise BadInput(f"rival {name!r} must have logits", "rivals", received, remedy)
    return seen.logits.double()


def centred_logits(seen: PlainPass) -> Tensor:
    """Logits less their mean over the classes, `[n, C]`: the logarithms of probabilities have the same."""
    logits = seen.probabilities.double().clamp_min(torch.finfo(torch.float32).tiny).log()
    if seen.logits is not None:
        logits = seen.logits.double()
    return logits - logits.mean(1, keepdim=True)
