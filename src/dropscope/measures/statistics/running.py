"""Running statistics over passes of class probabilities: update, merge, read. Memory does not grow with the passes.

Owns the stream of passes and the convention that classes are the LAST axis in here. The arithmetic is in `sums` and
`histograms`; see `measures` for what the statistics mean as uncertainty.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from dropscope.errors import BadInput, Phrase
from dropscope.measures.statistics import histograms
from dropscope.measures.statistics.sums import advance, advance_in_place, cache_blocks, check_needs, variance

_INT16_MAX = 32767
SUMMED = frozenset({"sum_p", "sum_plogp", "max_moments", "predicted_deviation"})  # what `add_sums` can take in
CONSTANT = ("shift", "shift_max", "plain_class", "plain_value")  # of a state: not summed over passes


class PassStatistics:
    """Running statistics of passes of class probabilities, exact to 1e-6 and better; the passes are not kept.

    Args:
        needs: Names of the statistics to keep: "sum_p", "sum_plogp", "max_moments", "predicted_deviation",
            "class_moments", "votes", "histogram", "correct". A measure lists its own in `Measure.needs`.
        plain: Probabilities `[..., C]` of the plain pass, for "predicted_deviation". It may have fewer leading
            dimensions than the passes: placements share one plain pass.
        bins: Bins of [0, 1], for "histogram".
        labels: Class indices, shaped like the examples, for "correct".
        groups: Group ids 0 … G − 1, shaped like the labels, for "correct". Without them all examples are one group.
        step: How passes go into the sums: `advance`, or its compiled form.

    Attributes:
        needs: The names, as a frozenset.
        bins: As given.
        passes: How many passes have been taken in.
        dtype: Precision of the passes; measures return it.
        state: The running sums by name.
        derived: What a measure worked out for itself and others, until more passes come.

    Raises:
        BadInput: Where a name is unknown, or `plain` or `labels` is missing for a statistic that needs it.

    Examples:
        >>> kept = PassStatistics(("sum_p", "votes"))
        >>> kept.update(torch.tensor([[0.5, 0.5], [0.2, 0.8]]))
        >>> kept.update(torch.tensor([[0.7, 0.3], [0.0, 1.0]]))
        >>> kept.passes, kept.mean.round(decimals=4).tolist()
        (2, [[0.6, 0.4], [0.1, 0.9]])
    """

    def __init__(
        self,
        needs: Collection[str],
        plain: Tensor | None = None,
        bins: int = 100,
        *,
        labels: Tensor | None = None,
        groups: Tensor | None = None,
        step: Callable[[dict[str, Tensor], Tensor], dict[str, Tensor]] = advance,
    ) -> None:
        self.needs = check_needs(needs)
        if "predicted_deviation" in self.needs and plain is None:
            rule = "plain must be given for the statistic 'predicted_deviation'"
            raise BadInput(rule, "plain", None, "pass plain=probabilities of one pass without noise")
        if "correct" in self.needs and labels is None:
            rule = "labels must be given for the statistic 'correct'"
            raise BadInput(rule, "labels", None, "pass labels=class indices")
        if bins < 1:
            raise BadInput("bins must be at least 1", "bins", bins, "leave bins=100")
        self.bins = bins
        self.passes = 0
        self.dtype = torch.float32
        self.state: dict[str, Tensor] = {}
        self.derived: dict[Any, Any] = {}
        self._waiting = histograms.Waiting()
        self._plain = None if plain is None else _probabilities(plain, "plain", check=True)
        self._labels, self._groups, self._step = labels, groups, step
        self._correct: list[Tensor] = []
        self._shape, self._members = torch.Size(), torch.empty(0)

    def update(self, p: Tensor, passes_dim: int | None = None, *, check: bool = True) -> None:
        """Takes in one pass, or a stack of passes.

        Args:
            p: Probabilities `[..., C]` of one pass; with `passes_dim`, of several.
            passes_dim: The dimension along which passes are stacked.
            check: Whether to refuse values that are no probabilities: one look at the extremes (on a GPU, one wait).

        Raises:
            BadInput: Where `p` is no tensor of probabilities, or has another shape than earlier passes.
        """
        p = _probabilities(p, "p", check=check)
        p = p.unsqueeze(0) if passes_dim is None else p.movedim(passes_dim, 0)
        if not self.state:
            self._begin(p)
        elif p.shape[1:] != self._shape:
            remedy = "give every pass the same examples and classes, or start another PassStatistics"
            raise BadInput(f"p must have the shape {tuple(self._shape)}", "p", tuple(p.shape[1:]), remedy)
        self.derived.clear()
        self.passes += p.shape[0]
        if "histogram" in self.needs and self.passes > _INT16_MAX:
            self.state["histogram"] = self.state["histogram"].to(torch.int32)
        if not histograms.take_in(self.state, p):
            self._take_in(p)
        if "correct" in self.needs and self._labels is not None:
            # Products of zeros and ones: exact in a float32 (even TF32) matrix product below 2^24 examples.
            right = (p.argmax(-1) == self._labels).flatten(-self._labels.dim()).float()
            self._correct.append((right @ self._members).round().long())

    def _take_in(self, p: Tensor) -> None:
        histogram = self.state.pop("histogram", None)
        if p.device.type == "cpu" and self._step is advance and not torch.compiler.is_exporting():
            with torch.inference_mode():  # the state may have been made in it
                for before, values in cache_blocks(self.state, p) or [(self.state, p)]:
                    advance_in_place(before, values)
        elif self.state:
            self.state = self._step(self.state, p)
        if histogram is None:
            return
        self.state["histogram"] = histogram
        if p.device.type == "cpu":
            self._waiting.add(p, histogram)
        else:
            histograms.scatter(histogram, p)

    def add_sums(self, sums: Tensor, passes: int) -> None:
        """Takes in passes that a kernel has summed.

        Args:
            sums: `[..., C + 4]`: the class sums, then Σ p log p, Σ (max − shift), Σ (max − shift)² and
                Σ (p(c*) − p*(c*))², the shift being the plain pass's own.
            passes: How many passes these are.
        """
        classes = sums.shape[-1] - 4
        if not self.state:
            self._begin(sums[..., :classes].unsqueeze(0))
        self.derived.clear()
        wide = sums.double()
        state = self.state
        if "sum_p" in state:
            state["sum_p"] = state["sum_p"] + wide[..., :classes]
        if "sum_plogp" in state:
            state["sum_plogp"] = state["sum_plogp"] + wide[..., classes]
        if "sum_max" in state:
            state["sum_max"] = state["sum_max"] + wide[..., classes + 1] + passes * state["shift_max"].double()
            state["squared_max"] = state["squared_max"] + wide[..., classes + 2]
        if "squared_predicted" in state:
            state["squared_predicted"] = state["squared_predicted"] + wide[..., classes + 3]
        self.passes += passes

    def merge(self, other: PassStatistics) -> None:
        """Takes in the passes of `other`, as if they had been in this stream.

        Args:
            other: Statistics of the same examples with the same needs and bins.

        Raises:
            BadInput: Where needs, bins or shapes differ.
        """
        if (self.needs, self.bins) != (other.needs, other.bins):
            remedy = f"make both with needs={sorted(self.needs)} and bins={self.bins}"
            rule = "other must keep the same statistics in as many bins"
            raise BadInput(rule, "other", (sorted(other.needs), other.bins), remedy)
        if not other.passes:
            return
        self.derived.clear()
        self._count_waiting()
        other._count_waiting()
        if not self.passes:
            self._shape, self.dtype, self.passes = other._shape, other.dtype, other.passes
            self.state = {name: value.clone() for name, value in other.state.items()}
            self._correct, self._members, self._labels = list(other._correct), other._members, other._labels
            return
        if self._shape != other._shape:
            remedy = "merge passes of the same examples"
            raise BadInput(f"other must have the shape {tuple(self._shape)}", "other", tuple(other._shape), remedy)
        moved = other._at_shift_of(self)
        passes = self.passes + other.passes
        for name, value in self.state.items():
            if name == "histogram" and passes > _INT16_MAX:
                self.state[name] = value.to(torch.int32) + moved[name]
            elif name not in CONSTANT:
                self.state[name] = value + moved[name]
        self.passes = passes
        self._correct += other._correct

    @property
    def cells(self) -> torch.Size:
        """Shape of what a measure returns: the passes' without their last dimension, the classes."""
        return self._shape[:-1]

    @property
    def mean(self) -> Tensor:
        """p̂ = (1/T) Σ_t p_t, `[..., C]`, float64."""
        return self.read("sum_p") / self.passes

    @property
    def mean_entropy(self) -> Tensor:
        """(1/T) Σ_t H(p_t), `[...]`, float64."""
        return (0.0 - self.read("sum_plogp")).clamp_min(0) / self.passes

    @property
    def max_variance(self) -> Tensor:
        """Population variance over passes of max_c p_t(c), `[...]`, float64."""
        shift = self.read("max_moments", "shift_max")
        return variance(self.state["sum_max"], self.state["squared_max"], shift, self.passes)

    @property
    def predicted_deviation(self) -> Tensor:
        """(1/T) Σ_t (p_t(c*) − p*(c*))², `[...]`, float64."""
        return self.read("predicted_deviation", "squared_predicted") / self.passes

    @property
    def correct_per_pass(self) -> Tensor:
        """Correct predictions of each pass and group, `[..., passes, G]`, int64; group sizes are `group_sizes`."""
        self._require("correct", "correct")
        return torch.cat(self._correct).movedim(0, -2)

    @property
    def group_sizes(self) -> Tensor:
        """Examples per group, `[G]`."""
        self._require("correct", "correct")
        return self._members.sum(0).round().long()

    @property
    def class_variance(self) -> Tensor:
        """Population variance over passes of p_t(c), `[..., C]`, float64."""
        shift = self.read("class_moments", "shift")
        return variance(self.state["sum_p"], self.state["squared"], shift, self.passes)

    def read(self, statistic: str, key: str | None = None) -> Tensor:
        """One tensor of the state.

        Args:
            statistic: The statistic that must have been kept.
            key: The tensor's name in `state`, where it is not the statistic's.

        Raises:
            BadInput: Where the statistic was not kept, or no pass has been taken in.
        """
        key = key or statistic
        self._require(statistic, key)
        self._count_waiting()
        return self.state[key]

    def _count_waiting(self) -> None:
        if "histogram" in self.state:
            self._waiting.count_into(self.state["histogram"])

    def _require(self, statistic: str, key: str) -> None:
        if statistic not in self.needs and key not in self.state:
            remedy = f"add {statistic!r} to needs before the passes run"
            raise BadInput(f"needs must include {statistic!r}", "needs", sorted(self.needs), remedy)
        if not self.passes:
            raise BadInput("passes must be at least 1 before statistics are read", "passes", 0, "call update(p) first")

    def _begin(self, p: Tensor) -> None:
        self._shape, self.dtype = p.shape[1:], p.dtype
        cells, device = self._shape[:-1], p.device
        plain = None if self._plain is None else self._plain.to(device)
        if plain is not None:
            try:
                plain.expand(self._shape)
            except RuntimeError:
                remedy = "give the plain pass of the same examples and classes"
                rule = f"plain must broadcast to {tuple(self._shape)}"
                raise BadInput(rule, "plain", tuple(plain.shape), remedy) from None
        shift = p[0].clone() if plain is None else plain

        def zeros(dtype: torch.dtype = torch.float64) -> Tensor:  # laid out as the passes are
            return torch.zeros_like(p[0], dtype=dtype)

        def zero() -> Tensor:
            return torch.zeros(cells, dtype=torch.float64, device=device)

        if {"sum_p", "class_moments"} & self.needs:
            self.state["sum_p"] = zeros()
        if "class_moments" in self.needs:
            self.state |= {"squared": zeros(), "shift": shift}
        if "sum_plogp" in self.needs:
            self.state["sum_plogp"] = zero()
        if "max_moments" in self.needs:
            self.state |= {"sum_max": zero(), "squared_max": zero(), "shift_max": shift.amax(-1)}
        if "predicted_deviation" in self.needs:
            value, index = shift.max(-1, keepdim=True)
            index = index.reshape((1,) * (p.dim() - index.dim()) + index.shape)
            self.state |= {"squared_predicted": zero(), "plain_class": index, "plain_value": value[..., 0]}
        if "votes" in self.needs:
            self.state["votes"] = zeros(torch.int32)
        if "histogram" in self.needs:
            self.state["histogram"] = torch.zeros((*self._shape, self.bins), dtype=torch.int16, device=device)
        if self._labels is not None and "correct" in self.needs:
            self._begin_counting(self._labels, cells, device)

    def _begin_counting(self, labels: Tensor, cells: torch.Size, device: torch.device) -> None:
        rank = labels.dim()
        if rank == 0 or rank > len(cells) or labels.shape != cells[-rank:]:
            remedy = "give one label per example"
            rule = f"labels must match the examples {tuple(cells)}"
            raise BadInput(rule, "labels", tuple(labels.shape), remedy)
        self._labels = labels.to(device)
        self._members = _membership(self._labels, self._groups)

    def _at_shift_of(self, to: PassStatistics) -> dict[str, Tensor]:
        """This state with its squared deviations re-expressed around the shift of `to`."""
        moved = dict(self.state)
        for total, squared, shift in (("sum_p", "squared", "shift"), ("sum_max", "squared_max", "shift_max")):
            if squared in moved:
                own = self.state[shift].double()
                step = own - to.state[shift]
                deviations = self.state[total] - self.passes * own
                moved[squared] = moved[squared] + 2 * step * deviations + self.passes * step.square()
        return moved


def from_passes(
    samples: Tensor, needs: Collection[str], plain: Tensor | None = None, bins: int = 100
) -> PassStatistics:
    """Statistics of stored passes.

    Args:
        samples: Probabilities `[passes, N, C, ...]`.
        needs: Names of the statistics to keep.
        plain: Probabilities `[N, C, ...]` of the plain pass, where a statistic needs it.
        bins: Bins of [0, 1], for "histogram".

    Raises:
        BadInput: Where shapes do not fit, or `samples` holds no probabilities.

    Examples:
        >>> from_passes(torch.full((4, 3, 2, 5, 5), 0.5), ("sum_p",)).mean.shape
        torch.Size([3, 5, 5, 2])
    """
    if samples.dim() < 3 or 0 in samples.shape:
        remedy = "stack the probabilities of the passes in a new first dimension"
        raise BadInput("samples must be [passes, N, C, ...]", "samples", tuple(samples.shape), remedy)
    if plain is not None and plain.shape != samples.shape[1:]:
        remedy = "give the probabilities of one plain pass over the same examples"
        rule = f"plain must have the shape {tuple(samples.shape[1:])}"
        raise BadInput(rule, "plain", tuple(plain.shape), remedy)
    kept = PassStatistics(needs, None if plain is None else plain.movedim(1, -1), bins)
    kept.update(samples.movedim(2, -1), passes_dim=0)
    return kept


def _probabilities(p: Tensor, name: str, *, check: bool) -> Tensor:
    if not isinstance(p, Tensor) or not p.is_floating_point() or p.dim() < 1 or 0 in p.shape:
        got = (tuple(p.shape), p.dtype) if isinstance(p, Tensor) else Phrase(type(p).__name__)
        rule = f"{name} must be a non-empty floating tensor of probabilities, classes last"
        raise BadInput(rule, name, got, "apply softmax first")
    slack = 1e-2 if p.dtype in (torch.float16, torch.bfloat16) else 1e-5
    p = p.detach()
    p = p.float() if p.dtype in (torch.float16, torch.bfloat16) else p
    if not check or torch.compiler.is_exporting():  # a graph has no values to look at
        return p
    low, high = (float(x) for x in torch.aminmax(p))  # a NaN anywhere makes both NaN
    if not (-slack <= low and high <= 1 + slack):
        overflow = "look for NaN and infinity among the inputs, and for overflow in the model"
        remedy = "apply softmax to logits first" if low == low else overflow
        extremes = Phrase(f"values from {low:.4g} to {high:.4g}")
        raise BadInput(f"{name} must hold probabilities in [0, 1]", name, extremes, remedy)
    # Rounding just outside would turn x log x into NaN.
    return p.clamp(0, 1) if low < 0 or high > 1 else p


def _membership(labels: Tensor, groups: Tensor | None) -> Tensor:
    """`[examples, G]`: 1 where an example belongs to a group."""
    groups = torch.zeros_like(labels) if groups is None else groups.to(labels.device)
    if groups.shape != labels.shape or groups.is_floating_point() or int(groups.min()) < 0:
        remedy = "give one group id 0, 1, … per label"
        raise BadInput(
            "groups must be ids that match the labels", "groups", (tuple(groups.shape), groups.dtype), remedy
        )
    return torch.nn.functional.one_hot(groups.flatten().long()).float()
