"""Values on folded rows: spread, selected, disturbed, or taken copy by copy.

Rows are (variant, pass, example) with the example fastest; a copy is a variant and a pass. Owns the arithmetic of one
value; see `segments` for the graphs that are made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._C._functorch import _set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]
from torch.utils import _pytree as pytree

from dropscope.noise import OwnNoise, standard_normal


def spread(value: Tensor, dim: int, copies: int) -> Tensor:
    """[…, examples, …] → […, copies × examples, …], the examples fastest."""
    shape = value.shape
    wide = value.unsqueeze(dim).expand(*shape[:dim], copies, *shape[dim:])
    return wide.reshape(*shape[:dim], -1, *shape[dim + 1 :])


def select(value: Tensor, dim: int, variants: int, chosen: Tensor | None) -> Tensor:
    """The rows of the chosen variants, in their order; None chooses all of them as they are."""
    if chosen is None:
        return value
    return value.unflatten(dim, (variants, -1)).index_select(dim, chosen).flatten(dim, dim + 1)


def disturb_rows(
    value: Tensor,
    dim: int,
    folded: int,
    units: Sequence[int],
    noise: str,
    uniform: Tensor,
    level: Tensor,
    gain: Tensor,
    parent: Any,
) -> Tensor:
    """Noise on the rows of all variants at once: `level` and `gain` per variant, `uniform` a word per unit.

    The words are those of (pass, example), the same for all variants: rates are coupled, and the hash is computed once.
    `parent` says which rows of `value` a variant takes: None where the value is plain and every variant and pass takes
    it, a number where each earlier variant has that many children, a tensor of variant numbers otherwise.
    """
    words = uniform.shape[0] * folded
    word = uniform.reshape(1, words, *units)
    each = (level.shape[0], *[1] * (word.dim() - 1))
    if noise == "bernoulli":
        factor = (word >= level.view(each)).float().mul_(gain.view(each))
    else:
        factor = (standard_normal(word) * gain.view(each)).add_(1.0)
    return _multiplied(value, dim, factor, units, parent)


def own_disturbance(own: OwnNoise, mask: str) -> Callable[..., Tensor]:
    """`disturb_rows` for noise of a user's own: `gain` holds the rate of each variant, 0 for none."""

    def disturb_rows_by_own(
        value: Tensor, dim: int, folded: int, units: Sequence[int], noise: str, uniform: Tensor, level: Tensor,
        gain: Any, parent: Any,
    ) -> Tensor:  # fmt: skip
        rates = gain.tolist() if isinstance(gain, Tensor) else gain  # numbers where a graph is made
        of_rate = {rate: own.factors(uniform, rate, mask, folded) for rate in set(rates) - {0.0}}
        plain = torch.ones_like(uniform, dtype=torch.float32)
        factor = torch.stack([of_rate.get(rate, plain) for rate in rates])
        factor = factor.reshape(len(rates), uniform.shape[0] * folded, *units)
        return _multiplied(value, dim, factor, units, parent)

    return disturb_rows_by_own


def _multiplied(value: Tensor, dim: int, factor: Tensor, units: Sequence[int], parent: Any) -> Tensor:
    """Factors `[variants, words, *units]`, which nobody else holds, times the rows they fall on."""
    rows = value.movedim(dim, 0)
    (variants, words), tail = factor.shape[:2], rows.shape[1:]
    factor = factor.to(value.dtype)
    if parent is None:
        examples = rows.shape[0]
        product = _times(factor.view(variants, words // examples, examples, *units), rows)
    elif isinstance(parent, Tensor):
        product = _times(factor, rows.unflatten(0, (-1, words)).index_select(0, parent))
    else:
        product = _times(factor.unflatten(0, (-1, parent)), rows.unflatten(0, (-1, 1, words)))
    return product.reshape(-1, *tail).movedim(0, dim)


def _times(factor: Tensor, rows: Tensor) -> Tensor:
    """factor × rows, into the factor where it has the shape of the product: nobody else holds it."""
    shape = torch.broadcast_shapes(factor.shape, rows.shape)
    return factor.mul_(rows) if factor.shape == shape and factor.dtype == rows.dtype else factor * rows


@dataclass(frozen=True)
class Argument:
    """A place in the arguments of an operation."""

    number: int


@dataclass(frozen=True)
class Copied:
    """Where the copies of a value lie: along `dim`, in front of its examples if `folded`; None where one is for all."""

    dim: int | None
    folded: bool = False


def per_copy(
    target: Any, arguments: Any, where: Sequence[Copied], results: Sequence[tuple[int, int] | None]
) -> Callable[..., Any]:
    """An operation on rows that runs for each copy by itself, on its own examples.

    Args:
        target: The operation.
        arguments: Its arguments, with an `Argument` for each value that is given.
        where: Where the copies of each of those lie.
        results: For each result, where its examples lie (see `Captured.batch`); one that they share gets its copies in
            front.
    """

    def run_per_copy(copies: int, *given: Any) -> Any:
        apart = [
            value.unflatten(copied.dim, (copies, -1)) if copied.folded else value
            for value, copied in zip(given, where, strict=True)
        ]

        def one(*values: Any) -> Any:
            args, kwargs = fx.node.map_aggregate(
                arguments, lambda a: values[a.number] if isinstance(a, Argument) else a
            )
            return target(*args, **kwargs)

        # That some operation is slower so is nothing a user can change.
        _set_vmap_fallback_warning_enabled(False)  # noqa: FBT003
        try:
            found = torch.vmap(one, tuple(copied.dim for copied in where))(*apart)
        finally:
            _set_vmap_fallback_warning_enabled(True)  # noqa: FBT003
        made, spec = pytree.tree_flatten(found)
        joined = [
            value if batch is None else value.movedim(0, batch[0]).flatten(batch[0], batch[0] + 1)
            for value, batch in zip(made, results, strict=True)
        ]
        return pytree.tree_unflatten(joined, spec)

    return run_per_copy
