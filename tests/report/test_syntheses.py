"""Several runs of one study as one: what is pooled, what it decides, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import dropscope as ds
from dropscope.analysis import Estimate, over_networks
from dropscope.report import Claim, Evidence, read_claims, write_claims
from support.errors import refused


def claim(name: str, *evidence: Evidence, one_is_enough: bool = False) -> Claim:
    return Claim(
        name, f"Claim {name}", "", "", "undecided", "t", evidence=evidence, one_is_enough=one_is_enough
    )  # fmt: skip


def effect(mean: float, spread: float = 0.1, n: int = 5, **rule: object) -> Evidence:
    """Of `n` networks whose mean and spread are exactly these."""
    values = np.linspace(-1, 1, n)
    estimate = over_networks((mean + spread * values / values.std(ddof=1)).tolist())
    return Evidence(estimate, "above", **rule)  # type: ignore[arg-type]


def folders(tmp_path: Path, *runs: list[Claim], study: str = "one", data: str | None = None) -> list[Path]:
    made = []
    for number, claims in enumerate(runs):
        made.append(tmp_path / f"run-{number}")
        write_claims(made[-1], study, data or f"data {number}", claims)
    return made


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = claim(
        "a", effect(0.2, margin=(0.1, 0.2), name="x", scale="log", family="f", bound=0.5),
        Evidence(Estimate(0.1, math.nan, math.nan, math.nan, 1, "one network"), "same", margin=0.1),
    )  # fmt: skip
    write_claims(tmp_path, "one", "data", [written])
    (read,) = read_claims(tmp_path).claims
    assert read.evidence[0] == written.evidence[0]
    assert math.isnan(read.evidence[1].estimate.low)
    json.loads((tmp_path / "claims.json").read_text(), parse_constant=lambda word: pytest.fail(word))  # no bare NaN


def test_pooled_numbers_are_those_of_the_studies_and_decide_by_their_rule(tmp_path: Path) -> None:
    runs = [[claim("a", effect(mean))] for mean in (0.2, 0.25, 0.3, 0.22)]
    made = ds.meta(folders(tmp_path, *runs), tmp_path / "meta")
    (row,) = made.table.to_dict("records")
    assert row["value"] == pytest.approx(0.2425)
    assert row["low"] < 0.2425 < row["high"]
    assert row["verdict"] == "supported"
    assert list(made.estimates.weight) == pytest.approx([0.25] * 4)
    text = (tmp_path / "meta" / "summary.md").read_text()
    assert "Claim a" in text
    assert (tmp_path / "meta" / "figures" / "forest-a.png").stat().st_size > 10_000
    assert "supported" in str(made)


def test_two_studies_decide_nothing_and_a_claim_of_one_study_is_named(tmp_path: Path) -> None:
    made = ds.meta(folders(tmp_path, [claim("a", effect(0.2)), claim("b", effect(0.2))], [claim("a", effect(0.21))]))
    assert list(made.table.verdict) == ["undecided"]
    assert made.not_pooled == {"b": "judged in 1 of 2 studies"}


def test_studies_that_contradict_each_other_decide_nothing(tmp_path: Path) -> None:
    runs = [[claim("a", effect(mean))] for mean in (0.4, -0.4, 0.3, -0.3)]
    made = ds.meta(folders(tmp_path, *runs))
    assert list(made.table.verdict) == ["undecided"]
    assert made.table.i2[0] > 0.9
    assert any("differ strongly" in remark for remark in made.remarks)


def test_absence_one_of_several_and_all_of_several_keep_their_rules(tmp_path: Path) -> None:
    def same(mean: float) -> Claim:
        return claim("same", Evidence(effect(mean, 0.01).estimate, "same", margin=0.1))

    def several(mean: float) -> tuple[Evidence, Evidence]:
        return effect(0.2, name="first"), effect(mean, name="second")

    runs = [
        [same(mean), claim("all", *several(mean)), claim("any", *several(mean), one_is_enough=True)]
        for mean in (0.01, -0.01, 0.02)
    ]
    made = ds.meta(folders(tmp_path, *runs))
    assert dict(zip(made.table.claim, made.table.verdict, strict=True)) == {
        "same": "supported",
        "all": "undecided",
        "any": "supported",
    }


def test_a_ratio_is_pooled_by_its_logarithm(tmp_path: Path) -> None:
    def ratio(value: float) -> Claim:
        e = Estimate(value, value / 1.5, value * 1.5, 0.01, 5, "t of logs")
        return claim("r", Evidence(e, "below", bound=0.5, scale="log"))

    made = ds.meta(folders(tmp_path, *([ratio(value)] for value in (0.1, 0.2, 0.4))), tmp_path / "meta")
    assert made.table.value[0] == pytest.approx(0.2)
    assert made.table.low[0] > 0


def test_a_family_shares_holms_adjustment(tmp_path: Path) -> None:
    def run(mean: float) -> list[Claim]:
        return [claim(name, effect(mean, family="pairs")) for name in "abc"]

    alone = ds.meta(folders(tmp_path / "alone", *([run(mean)[0]] for mean in (0.05, 0.25, 0.2)))).table.p[0]
    together = ds.meta(folders(tmp_path / "together", *map(run, (0.05, 0.25, 0.2)))).table.p
    assert list(together) == pytest.approx([3 * alone] * 3)


def test_numbers_without_an_interval_or_with_another_margin_are_left_out(tmp_path: Path) -> None:
    nothing = Evidence(Estimate(0.1, math.nan, math.nan, math.nan, 1, "one network"), "above")
    runs = [[claim("a", effect(0.2))], [claim("a", nothing)], [claim("a", effect(0.3))]]
    (pooled,) = ds.meta(folders(tmp_path / "few", *runs)).claims
    assert pooled.left_out == {"run-1": "one network"}
    others = [[claim("a", effect(0.2, margin=margin))] for margin in (0.01, 0.02, 0.02)]
    assert "margin" in ds.meta(folders(tmp_path / "margins", *others)).not_pooled["a"]


def test_runs_on_the_same_data_are_named(tmp_path: Path) -> None:
    made = ds.meta(folders(tmp_path, [claim("a", effect(0.2))], [claim("a", effect(0.3))], data="same"))
    assert any("not independent" in remark for remark in made.remarks)


def test_what_cannot_be_pooled_is_refused(tmp_path: Path) -> None:
    first, second = folders(tmp_path, [claim("a", effect(0.2))], [claim("a", effect(0.3))])
    (other,) = folders(tmp_path / "other", [claim("a", effect(0.2))], study="two")
    (copy,) = folders(tmp_path / "copy", [claim("a", effect(0.2))])
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "claims.json").write_text('{"study": "one"}')
    bad = [[first], [], [first, other], [first, first], [first, copy], [first, tmp_path], [first, damaged], first]
    for given in bad:
        with refused("folders"):
            ds.meta(given)  # type: ignore[arg-type]
    with refused("out"):
        ds.meta([first, second], first / "claims.json")
