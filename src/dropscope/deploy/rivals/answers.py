"""What a rival is, and what it answers: probabilities and an uncertainty for every example.

Owns the protocol and the checks of an answer, whoever gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from dropscope.errors import BadInput, Phrase

if TYPE_CHECKING:
    from dropscope.deploy.rivals.forwards import PlainPass

_SUM = 1e-3  # how far a sum of probabilities may be from 1
_OWN = "own"


@dataclass(frozen=True, eq=False)
class Answer:
    """What a rival says about some examples.

    Attributes:
        probabilities: `[n, C]`. They predict, and NLL, Brier score and ECE are theirs.
        uncertainty: `[n]`, higher for less certain examples; or several measures by name, of which the one with the
            least AURC on the fitting examples counts.
        passes: Plain passes per example that it ran itself; None where it only reads the one plain pass.

    Examples:
        >>> Answer(torch.tensor([[0.9, 0.1]]), torch.tensor([0.1])).passes is None
        True
    """

    probabilities: Tensor
    uncertainty: Tensor | Mapping[str, Tensor]
    passes: float | None = None

    @property
    def measures(self) -> dict[str, Tensor]:
        """Each measure by name; one without a name is called "own"."""
        return {_OWN: self.uncertainty} if isinstance(self.uncertainty, Tensor) else dict(self.uncertainty)


Scorer: TypeAlias = Callable[["PlainPass"], "Answer | Tensor"]


@runtime_checkable
class Rival(Protocol):
    """A rival that is fitted first. One that is not may be a function of the plain pass alone."""

    def fit(self, fitting: PlainPass) -> Scorer:
        """Takes labelled examples that judge nothing, and returns what answers about others."""
        ...


def scorer_of(rival: Any, fitting: PlainPass) -> Scorer:
    """What answers: the rival fitted, or the function itself."""
    return rival.fit(fitting) if hasattr(rival, "fit") else rival


def checked_answer(given: Any, name: str, seen: PlainPass) -> Answer:
    """The answer of a rival; an uncertainty alone goes with the predictions of the plain pass.

    Raises:
        BadInput: Where it is not one row per example, or holds no probabilities.
    """
    answer = Answer(seen.probabilities, given) if isinstance(given, Tensor) else given
    if not isinstance(answer, Answer):
        received = Phrase(type(answer).__name__)
        remedy = "return a tensor [n], or Answer(probabilities, uncertainty)"
        raise BadInput(f"rival {name!r} must return an uncertainty or an Answer", "rivals", received, remedy)
    shape = tuple(seen.probabilities.shape)
    p = checked_rows(answer.probabilities, shape, f"rival {name!r}", "rivals")
    values = {}
    for measure, value in answer.measures.items():
        if not isinstance(value, Tensor) or tuple(value.shape) != shape[:1]:
            received = Phrase(f"shape {tuple(getattr(value, 'shape', ()))}")
            what = f"rival {name!r} must return one uncertainty per example: {shape[:1]}"
            raise BadInput(what, "rivals", received, "return a tensor [n], higher for less certain examples")
        value = value.detach().double().cpu()
        if bad := int((~torch.isfinite(value)).sum()):
            what = f"rival {name!r} must return finite uncertainties"
            received = Phrase(f"{bad} of {len(value)} that are NaN or infinite")
            raise BadInput(what, "rivals", received, "look at those examples, or clamp the values")
        values[measure] = value
    return Answer(p, values, answer.passes)


def checked_rows(p: Tensor, shape: tuple[int, ...], whose: str, name: str) -> Tensor:
    """Probabilities of a shape, in float64, that sum to 1 over the last axis.

    Args:
        p: The probabilities.
        shape: What their shape must be.
        whose: The subject of the sentence.
        name: The argument.

    Raises:
        BadInput: For another shape, NaN, values outside [0, 1], or sums that are not 1.
    """
    if not isinstance(p, Tensor) or tuple(p.shape) != shape:
        received = Phrase(f"shape {tuple(getattr(p, 'shape', ()))}")
        remedy = "give a row for each example in the order of the data, and a column for each class"
        raise BadInput(f"{whose} must hold probabilities of shape {shape}", name, received, remedy)
    p = p.detach().double().cpu()
    low, high = (float(value) for value in torch.aminmax(p))
    if not (low >= -_SUM and high <= 1 + _SUM):
        received = Phrase("NaN" if low != low else f"values from {low:.4g} to {high:.4g}")
        raise BadInput(f"{whose} must hold probabilities in [0, 1]", name, received, "apply softmax to logits first")
    furthest = float((p.sum(-1) - 1).abs().max())
    if furthest > _SUM:
        received = Phrase(f"sums up to {furthest:.3g} from 1")
        remedy = "divide by the sum over the classes, which are last"
        raise BadInput(f"{whose} must hold probabilities that sum to 1", name, received, remedy)
    return p.clamp(0, 1)
