"""Quantities of placements beside their scores: how much is dropped, in how many layers, how early, how evenly.

Owns the quantities of the where-to-drop paper (eq 18 to 23, see docs/papers.md) and their marginal means, over the rows
of any sweep. Whether a difference is more than chance: see `effects`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd
from scipy import stats

from dropscope.errors import BadInput, nearest
from dropscope.placement import Placement, parse_address

QUANTITIES = ("p_mean", "n_layers", "first", "last", "mu", "sigma", "skewness", "kurtosis")

_POSITIONS = {"before_activation": "before", "after_activation": "after"}


def with_quantities(rows: pd.DataFrame, layers: Sequence[str]) -> pd.DataFrame:
    """The rows with the quantities of their placements; every distinct text is parsed once.

    `layers` are the maskable layers in order, l = 1 … L. Adds, with p_l the rate of layer l (0 where it has none):
    `rate_LAYER` = p_l; `n_layers` = #{l : p_l > 0}; `p_mean` = the mean of p_l over those (eq 18); `first`, `last` =
    the smallest and largest such l, `first_layer`, `last_layer` their names, `first_rate`, `last_rate` their rates (eq
    23); and with p'_l = p_l/Σp_j: `mu` = Σ p'_l·l, `sigma` = √Σ p'_l (l − mu)², `skewness`, `kurtosis` = Σ p'_l ((l −
    mu)/sigma)³ and ⁴ (eq 19 to 22; kurtosis is not the excess; both are NaN, not 0, at sigma = 0, where they have no
    meaning). `position` is before, after, input, output, auto, mixed or none. `none` has n_layers = 0, the rest NaN.

    >>> rows = pd.DataFrame({"placement": ["a=0.25,c=0.75", "b@input=0.5"]})
    >>> columns = ["p_mean", "n_layers", "first", "last", "mu", "position"]
    >>> with_quantities(rows, ["a", "b", "c"])[columns].values.tolist()
    [[0.5, 2, 1, 3, 2.5, 'auto'], [0.5, 1, 2, 2, 2.0, 'input']]
    """
    if "placement" not in rows:
        remedy = "pass run.rows, or rows with that column"
        raise BadInput("rows must have a column 'placement'", "rows", list(rows.columns), remedy)
    names = _names(layers)
    codes, texts = pd.factorize(rows["placement"])
    rates = np.zeros((len(texts), len(names)))
    positions = []
    for row, text in enumerate(texts):
        positions.append(_read(str(text), names, rates[row]))
    facts = _facts(rates, list(layers), positions)
    taken = {name: values[codes] for name, values in facts.items()}
    return rows.assign(**taken)


def marginal_means(rows: pd.DataFrame, by: str | Sequence[str], score: str) -> pd.DataFrame:
    """Mean and std of a score over placements, for every measure and value of `by`.

    Columns: `measure` (where rows have it), `by`, `mean`, `low`, `high`, `std`, `q05`, `q95`, `between`, `placements`,
    `networks`. With a column `network`, mean is the mean over networks of each one's mean, low and high its 95 % t
    interval over networks, std the root mean square of each one's std over its placements, q05 and q95 the means of
    each one's 5th and 95th percentile, and between the std (ddof 1) of the networks' means; interval and between are
    NaN for one network. std has ddof 0: a grid is all there is, not a sample; it describes and is no interval. Rows
    without a value of `by` or of the score are left out.

    >>> rows = pd.DataFrame({"n_layers": [1, 1, 2], "aurc": [0.1, 0.3, 0.5]})
    >>> marginal_means(rows, "n_layers", "aurc")[["n_layers", "mean", "std", "placements"]].round(3).values.tolist()
    [[1.0, 0.2, 0.1, 2.0], [2.0, 0.5, 0.0, 1.0]]
    """
    by = [by] if isinstance(by, str) else list(by)
    keys = [*(["measure"] if "measure" in rows and "measure" not in by else []), *by]
    for name in (*keys, score):
        if name not in rows:
            raise BadInput("by and score must be columns of rows", name, name, nearest(name, map(str, rows.columns)))
    known = rows.dropna(subset=[*keys, score])
    within = known.assign(network=known.get("network", "")).groupby([*keys, "network"], observed=True)[score]
    each = pd.DataFrame({"mean": within.mean(), "variance": within.var(ddof=0), "size": within.size()})
    each = each.assign(q05=within.quantile(0.05), q95=within.quantile(0.95))
    groups = each.groupby(level=keys, observed=True)
    mean, between, networks = groups["mean"].mean(), groups["mean"].std(), groups.size()
    half = stats.t.ppf(0.975, (networks - 1).where(networks > 1)) * between / np.sqrt(networks)
    table = pd.DataFrame(
        {
            "mean": mean,
            "low": mean - half,
            "high": mean + half,
            "std": np.sqrt(groups["variance"].mean()),
            "q05": groups["q05"].mean(),
            "q95": groups["q95"].mean(),
            "between": between,
            "placements": groups["size"].max(),
            "networks": networks,
        }
    )
    return table.reset_index()


def per_layer_rate(rows: pd.DataFrame, which: Literal["first", "last"], score: str) -> pd.DataFrame:
    """`marginal` per (layer, rate), the layer being the first or the last masked one, the rate its rate (eq 23).

    >>> rows = with_quantities(pd.DataFrame({"placement": ["a=0.2", "a=0.2,b=0.6"], "aurc": [0.1, 0.3]}), ["a", "b"])
    >>> per_layer_rate(rows, "first", "aurc")[["first_layer", "first_rate", "mean"]].values.tolist()
    [['a', 0.2, 0.2]]
    """
    if which not in ("first", "last"):
        raise BadInput("which must be 'first' or 'last'", "which", which, "write which='first'")
    return marginal_means(rows, [which, f"{which}_layer", f"{which}_rate"], score)


def without_equivalents(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of one placement out of each set that is equal by mathematics, so that each counts once.

    >>> rows = pd.DataFrame({"placement": ["a@input=0.1", "b=0.1"], "equivalent_to": [None, "a@input=0.1"]})
    >>> without_equivalents(rows)["placement"].tolist()
    ['a@input=0.1']
    """
    return rows[rows["equivalent_to"].isna()] if "equivalent_to" in rows else rows


def _names(layers: Sequence[str]) -> dict[tuple[str, int | None], tuple[int, bool]]:
    """Site and call → index, and whether the layer's own name says where its mask goes."""
    names: dict[tuple[str, int | None], tuple[int, bool]] = {}
    for index, layer in enumerate(layers):
        name, call, position = parse_address(layer)
        if (name, call) in names:
            raise BadInput("layers must be distinct", "layers", layer, "list each maskable layer once, in order")
        names[name, call] = index, position is not None
    if not names:
        raise BadInput("layers must not be empty", "layers", list(layers), "list the maskable layers of the grid")
    return names


def _read(text: str, names: dict[tuple[str, int | None], tuple[int, bool]], into: np.ndarray) -> str:
    """Writes the rates of one placement into an array of zeros; returns its position."""
    placement = Placement.parse(text)
    positions = set()
    if placement.own:
        remedy = "leave these rows out: the model's own dropout has no rate in them"
        raise BadInput("placements must name layers", "placement", text, remedy)
    for term in placement.terms:
        if (term.name, term.call) not in names:
            remedy = "list every layer of the grid in layers, or leave these rows out"
            known = ", ".join(name for name, _ in names)
            raise BadInput(f"placements must name layers out of {known}", "placement", text, remedy)
        index, fixed = names[term.name, term.call]
        if into[index]:
            remedy = "leave out rows with two positions"
            raise BadInput(f"layer {term.name!r} must have one rate per placement", "placement", text, remedy)
        into[index] = term.rate
        if not fixed:
            positions.add(_POSITIONS.get(term.position, term.position))
    if placement.is_none:
        return "none"
    return "mixed" if len(positions) > 1 else next(iter(positions), "auto")


def _facts(rates: np.ndarray, layers: list[str], positions: list[str]) -> dict[str, np.ndarray]:
    """Every quantity, a value per distinct placement."""
    index = np.arange(1, len(layers) + 1)
    masked = rates > 0
    count, total = masked.sum(1), rates.sum(1)
    any_masked = count > 0
    share = np.divide(rates, total[:, None], out=np.full_like(rates, np.nan), where=any_masked[:, None])
    mu = (share * index).sum(1)
    away = index - mu[:, None]
    # p/p is 1 exactly, so one layer alone has sigma = 0 exactly, whatever its rate.
    sigma = np.sqrt((share * away**2).sum(1))
    scaled = np.divide(away, sigma[:, None], out=np.full_like(rates, np.nan), where=sigma[:, None] > 0)
    first, last = masked.argmax(1), len(layers) - 1 - masked[:, ::-1].argmax(1)
    each = np.arange(len(rates))
    named = np.array(layers, dtype=object)
    unknown = 0 if any_masked.all() else np.nan  # integers stay integers where no placement is `none`
    return {
        **{f"rate_{layer}": rates[:, i] for i, layer in enumerate(layers)},
        "n_layers": count,
        "first": np.where(any_masked, first + 1, unknown),
        "last": np.where(any_masked, last + 1, unknown),
        # Ten decimals, so that .1 + .2 and .3 are one value to group by.
        "p_mean": np.divide(total, count, out=np.full(len(rates), np.nan), where=any_masked).round(10),
        "first_layer": np.where(any_masked, named[first], None),
        "last_layer": np.where(any_masked, named[last], None),
        "first_rate": np.where(any_masked, rates[each, first], np.nan),
        "last_rate": np.where(any_masked, rates[each, last], np.nan),
        "mu": mu,
        "sigma": sigma,
        "skewness": (share * scaled**3).sum(1),
        "kurtosis": (share * scaled**4).sum(1),
        "position": np.array(positions, dtype=object),
    }
