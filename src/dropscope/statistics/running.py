"""Running statistics over passes of class probabilities: update, merge, read. Memory does not grow with the passes.

Owns the class axis convention (LAST in here) and the arithmetic that keeps sums and variances exact to 1e-6 and better.
What the statistics mean as uncertainty is `measures`; which passes are run, and where, is `execute`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from dropscope.errors import BadInput, nearest
from dropscope.statistics import histograms
from dropscope.statistics.pieces import pieces

# name → (what is kept per cell, bytes per cell as a function of classes and bins). A cell is one example or voxel.
STATISTICS: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "sum_p": ("Σ_t p_t(c), per class", lambda classes, bins: 8 * classes),
    "sum_plogp": ("Σ_t Σ_c p log p", lambda classes, bins: 8),
    "max_moments": ("first and second moment of max_c p_t(c)", lambda classes, bins: 20),
    "predicted_deviation": ("Σ_t (p_t(c*) − p*(c*))²; needs the plain pass", lambda classes, bins: 20),
    "class_moments": ("first and second moment of p_t(c), per class", lambda classes, bins: 20 * classes),
    "votes": ("how many passes predict class c", lambda classes, bins: 4 * classes),
    "histogram": (
        "how many passes put class c into each bin of [0, 1], and on a CPU the bins of the last 32 passes",
        lambda classes, bins: (2 * bins + histograms.WAITING) * classes,
    ),
    "correct": ("correct predictions of each pass, per group; needs labels; grows as passes × groups", lambda c, b: 0),
}
CHEAP = ("sum_p", "sum_plogp", "max_moments", "class_moments", "votes")

_INT16_MAX = 32767


def statistics_bytes(needs: Collection[str], classes: int, bins: int = 100) -> int:
    """Bytes kept per example (per voxel), whatever the number of passes.

    >>> statistics_bytes(("sum_p", "sum_plogp"), classes=10), statistics_bytes(("histogram",), classes=3)
    (88, 696)
    """
    return sum(STATISTICS[name][1](classes, bins) for name in _known(needs))


def broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    """Whether a tensor of this shape expands to `to` as it is, without `to` having to grow."""
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False))


def advance(state: dict[str, Tensor], p: Tensor) -> dict[str, Tensor]:
    """The state after the passes `p[passes, ..., C]`: a pure function of tensors, so that torch.compile can fuse it.

    Sums run in float64. Squares are taken of deviations from a fixed shift (the plain pass, or the first pass seen),
    subtracted in float64 too: rounding the differences to float32 alone would cost 1e-8 in a variance.
    """
    after = dict(state)
    alone = len(p) == 1  # then nothing is summed over passes
    if "sum_p" in state:
        after["sum_p"] = state["sum_p"] + (p[0] if alone else p.sum(0, dtype=torch.float64))
    if "sum_plogp" in state:
        after["sum_plogp"] = state["sum_plogp"] + torch.xlogy(p, p).sum(-1).sum(0, dtype=torch.float64)
    if "sum_max" in state:
        highest = p.amax(-1)
        after["sum_max"] = state["sum_max"] + highest.sum(0, dtype=torch.float64)
        after["squared_max"] = state["squared_max"] + (highest.double() - state["shift_max"]).square().sum(0)
    if "squared_predicted" in state:
        at_predicted = torch.take_along_dim(p, state["plain_class"], -1).squeeze(-1)
        deviation = at_predicted.double() - state["plain_value"]
        after["squared_predicted"] = state["squared_predicted"] + deviation.square().sum(0)
    if "squared" in state:
        # In-place steps are on a fresh copy, the largest thing made here when nothing is fused.
        deviation = p.to(torch.float64, copy=True).sub_(state["shift"])
        after["squared"] = (
            torch.addcmul(state["squared"], deviation[0], deviation[0])
            if alone
            else state["squared"] + deviation.square_().sum(0)
        )
    if "votes" in state:
        classes = torch.arange(p.shape[-1], device=p.device)
        chosen = p.argmax(-1, keepdim=True) == classes
        after["votes"] = state["votes"] + chosen.sum(0, dtype=torch.int32)
    return after


class PassStatistics:
    """What is kept of the passes, under the names in `needs` (see `STATISTICS`).

    `plain[..., C]` is the dropout-free pass, and may have fewer leading dimensions than the passes (placements share
    one plain pass). `labels` and `groups` (ids 0..G−1), shaped like the examples, are for "correct". `step` is
    `advance`, or its compiled form.

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
        self.needs = _known(needs)
        if "predicted_deviation" in self.needs and plain is None:
            rule = "the statistic 'predicted_deviation' compares with the plain pass"
            raise BadInput(rule, "plain", None, "pass plain=probabilities of one pass without noise")
        if "correct" in self.needs and labels is None:
            raise BadInput("the statistic 'correct' counts against labels", "labels", None, "pass labels=class indices")
        if bins < 1:
            raise BadInput("a histogram has at least one bin", "bins", bins, "leave bins=100")
        self.bins = bins
        self.passes = 0
        self.dtype = torch.float32
        self.state: dict[str, Tensor] = {}
        self.derived: dict[Any, Any] = {}  # what a measure worked out for itself and others, until more passes come
        self._waiting = histograms.Waiting()
        self._plain = None if plain is None else _probabilities(plain, "plain", check=True)
        self._labels, self._groups, self._step = labels, groups, step
        self._correct: list[Tensor] = []
        self._shape, self._members = torch.Size(), torch.empty(0)

    def update(self, p: Tensor, passes_dim: int | None = None, check: bool = True) -> None:
        """Take in one pass `p[..., C]`, or a stack of passes along `passes_dim`.

        `check=True` refuses values that are no probabilities: one look at the extremes (on a GPU, one wait).
        """
        p = _probabilities(p, "p", check)
        p = p.unsqueeze(0) if passes_dim is None else p.movedim(passes_dim, 0)
        if not self.state:
            self._begin(p)
        elif p.shape[1:] != self._shape:
            remedy = "give every pass the same examples and classes, or start another PassStatistics"
            raise BadInput(f"every pass has the shape {tuple(self._shape)}", "p", tuple(p.shape[1:]), remedy)
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
        found = pieces(self.state, p) if p.device.type == "cpu" else []
        with torch.inference_mode():  # everything is copied into a state that may have been made in it
            for before, some in found:
                for name, value in self._step(before, some).items():
                    if value is not before[name]:
                        before[name].copy_(value)
        if self.state and not found:
            self.state = self._step(self.state, p)
        if histogram is None:
            return
        self.state["histogram"] = histogram
        if p.device.type == "cpu":
            self._waiting.add(p, histogram)
        else:
            histograms.scatter(histogram, p)

    def add_sums(self, sums: Tensor, passes: int) -> None:
        """Take in passes that a kernel has summed: `[..., C + 4]`, the class sums, then Σ p log p, Σ (max − shift),
        Σ (max − shift)² and Σ (p(c*) − p*(c*))², the shift being the plain pass's own."""
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
        """Take in the passes of `other` (same examples, same needs), as if they had been in this stream."""
        if (self.needs, self.bins) != (other.needs, other.bins):
            remedy = f"make both with needs={sorted(self.needs)} and bins={self.bins}"
            raise BadInput("merged statistics keep the same things", "other", (sorted(other.needs), other.bins), remedy)
        if not other.passes:
            return
        self.derived.clear()
        for each in (self, other):
            each._count_waiting()
        if not self.passes:
            self._shape, self.dtype, self.passes = other._shape, other.dtype, other.passes
            self.state = {name: value.clone() for name, value in other.state.items()}
            self._correct, self._members, self._labels = list(other._correct), other._members, other._labels
            return
        if self._shape != other._shape:
            remedy = "merge passes of the same examples"
            raise BadInput(f"every pass has the shape {tuple(self._shape)}", "other", tuple(other._shape), remedy)
        moved = other._at_shift_of(self)
        passes = self.passes + other.passes
        for name, value in self.state.items():
            if name == "histogram" and passes > _INT16_MAX:
                self.state[name] = value.to(torch.int32) + moved[name]
            elif name not in _CONSTANT:
                self.state[name] = value + moved[name]
        self.passes = passes
        self._correct += other._correct

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
        return _variance(self.state["sum_max"], self.state["squared_max"], shift, self.passes)

    @property
    def predicted_deviation(self) -> Tensor:
        """(1/T) Σ_t (p_t(c*) − p*(c*))², `[...]`, float64."""
        return self.read("predicted_deviation", "squared_predicted") / self.passes

    @property
    def class_variance(self) -> Tensor:
        """Population variance over passes of p_t(c), `[..., C]`, float64."""
        shift = self.read("class_moments", "shift")
        return _variance(self.state["sum_p"], self.state["squared"], shift, self.passes)

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

    def read(self, statistic: str, key: str | None = None) -> Tensor:
        """One tensor of the state (the statistic's own, unless `key` names another), or an error with the remedy."""
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
            raise BadInput(f"the statistic {statistic!r} was not kept", "needs", sorted(self.needs), remedy)
        if not self.passes:
            raise BadInput("statistics are read after at least one pass", "passes", 0, "call update(p) first")

    def _begin(self, p: Tensor) -> None:
        self._shape, self.dtype = p.shape[1:], p.dtype
        cells, device = self._shape[:-1], p.device
        plain = None if self._plain is None else self._plain.to(device)
        if plain is not None and not broadcasts(plain.shape, self._shape):
            remedy = "give the plain pass of the same examples and classes"
            raise BadInput(f"plain broadcasts to {tuple(self._shape)}", "plain", tuple(plain.shape), remedy)
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
        labels = self._labels
        if labels is not None and "correct" in self.needs:
            rank = labels.dim()
            if rank == 0 or rank > len(cells) or labels.shape != cells[-rank:]:
                remedy = "give one label per example"
                raise BadInput(f"labels match the examples {tuple(cells)}", "labels", tuple(labels.shape), remedy)
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


_CONSTANT = ("shift", "shift_max", "plain_class", "plain_value")


def from_passes(
    samples: Tensor, needs: Collection[str], plain: Tensor | None = None, bins: int = 100
) -> PassStatistics:
    """Statistics of stored passes `samples[passes, N, C, ...]`, `plain[N, C, ...]`.

    >>> from_passes(torch.full((4, 3, 2, 5, 5), 0.5), ("sum_p",)).mean.shape
    torch.Size([3, 5, 5, 2])
    """
    if samples.dim() < 3 or 0 in samples.shape:
        remedy = "stack the probabilities of the passes in a new first dimension"
        raise BadInput("stored passes are [passes, N, C, ...]", "samples", tuple(samples.shape), remedy)
    if plain is not None and plain.shape != samples.shape[1:]:
        remedy = "give the probabilities of one plain pass over the same examples"
        raise BadInput(f"the plain pass is {tuple(samples.shape[1:])}", "plain", tuple(plain.shape), remedy)
    kept = PassStatistics(needs, None if plain is None else plain.movedim(1, -1), bins)
    kept.update(samples.movedim(2, -1), passes_dim=0)
    return kept


def _known(needs: Collection[str]) -> frozenset[str]:
    names = (needs,) if isinstance(needs, str) else tuple(needs)
    for name in names:
        if name not in STATISTICS:
            raise BadInput("needs names statistics that exist", "needs", name, nearest(name, STATISTICS))
    return frozenset(names)


def _probabilities(p: Tensor, name: str, check: bool) -> Tensor:
    if not isinstance(p, Tensor) or not p.is_floating_point() or p.dim() < 1 or 0 in p.shape:
        got = (tuple(p.shape), p.dtype) if isinstance(p, Tensor) else type(p).__name__
        raise BadInput("probabilities are a non-empty floating tensor, classes last", name, got, "apply softmax first")
    slack = 1e-2 if p.dtype in (torch.float16, torch.bfloat16) else 1e-5
    p = p.detach()
    p = p.float() if p.dtype in (torch.float16, torch.bfloat16) else p
    if not check:
        return p
    low, high = (float(x) for x in torch.aminmax(p))  # a NaN anywhere makes both NaN
    if not (-slack <= low and high <= 1 + slack):
        overflow = "look for NaN and infinity among the inputs, and for overflow in the model"
        remedy = "apply softmax to logits first" if low == low else overflow
        raise BadInput("probabilities lie in [0, 1]", f"{name} (smallest, largest)", (low, high), remedy)
    # Rounding just outside would turn x log x into NaN.
    return p.clamp(0, 1) if low < 0 or high > 1 else p


def _membership(labels: Tensor, groups: Tensor | None) -> Tensor:
    """`[examples, G]`: 1 where an example belongs to a group."""
    groups = torch.zeros_like(labels) if groups is None else groups.to(labels.device)
    if groups.shape != labels.shape or groups.is_floating_point() or int(groups.min()) < 0:
        remedy = "give one group id 0, 1, … per label"
        raise BadInput("groups match the labels", "groups", (tuple(groups.shape), groups.dtype), remedy)
    return torch.nn.functional.one_hot(groups.flatten().long()).float()


def _variance(total: Tensor, squared: Tensor, shift: Tensor, passes: int) -> Tensor:
    return (squared / passes - (total / passes - shift).square()).clamp_min(0)
