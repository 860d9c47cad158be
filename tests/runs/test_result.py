"""A run as a user sees it: short in a terminal, a table in a notebook, and the best rows in eighty columns."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

import dropscope as ds
from dropscope.runs.intervals import INTERVAL
from dropscope.runs.ranking import best_table
from support import zoo

LONG = "a_layer_with_quite_a_long_name_indeed"


class Named(nn.Module):
    """A model whose layers have names that are markup, or long."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("<script>", nn.Linear(8, 32))
        self.add_module(LONG, nn.Linear(32, 32))
        self.classifier = nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for module in list(self.children())[:-1]:
            x = module(x).relu()
        return self.classifier(x)


@pytest.fixture(scope="module")
def run() -> ds.Run:
    placements = [
        ds.Placement(dict.fromkeys(names, rate))
        for names in (["<script>"], [LONG], ["<script>", LONG])
        for rate in (0.2, 0.5)
    ]
    return ds.sweep(zoo.seeded(Named), placements, (zoo.vectors(40), torch.arange(40) % 3), passes=4, progress=False)


def lines_of(text: str, width: int = 80) -> list[str]:
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    return lines


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_a_run_is_shown_in_a_few_lines_beside_one_plain_pass(run: ds.Run) -> None:
    lines = lines_of(repr(run))
    assert len(lines) <= 25  # the long names of these layers are folded
    assert "6 placements × 5 measures, 4 passes on 40 examples" in lines[0]
    assert any("plain_entropy" in line for line in lines)
    assert str(run) == repr(run)


def test_a_run_in_a_notebook_is_a_table_without_markup_of_the_user(run: ds.Run) -> None:
    fragment = run._repr_html_()
    assert "<script>" not in fragment
    assert "&lt;script&gt;" in fragment
    assert fragment.count("<tr>") == 1 + 5 + 3


def test_a_run_by_another_score_is_shown_by_that(run: ds.Run) -> None:
    other = ds.sweep(zoo.seeded(Named), ["last=.5"], (zoo.vectors(40), torch.arange(40) % 3), passes=3,
                     scores=["error_auroc"], objective="error_auroc", engine="loop", progress=False)  # fmt: skip
    assert "error_auroc↑" in repr(other)
    assert "aurc_minus_single_pass" not in other.rows


def test_the_best_rows_print_in_eighty_columns(run: ds.Run) -> None:
    best = run.best(count=4)
    lines = lines_of(str(best))
    assert lines[0].split() == ["placement", "measure", "aurc↓", "vs", "plain"]
    below = " ".join(lines[-4:])
    assert "95 % interval, MC error, accuracy↑, cost↓" in below  # left out for the long names, not folded into slivers
    assert "vs plain: less the aurc of one plain pass" in below
    assert f"for the best of {len(run.rows)} rows" in below
    assert "95 % interval" in best_table(best, "aurc", "lower").text(140).splitlines()[0]
    assert f"{best.aurc.iloc[0]:.4f}" in str(best)
    assert lines_of(repr(run.best("error_auroc")))[0].count("↑") == 1
    assert "<script>" not in best._repr_html_()
    assert best._repr_html_().count("<tr>") == 1 + 4


def test_the_best_rows_are_rows_like_any_other(run: ds.Run) -> None:
    best = run.best(count=3)
    assert isinstance(best, pd.DataFrame)
    assert {*run.rows.columns, *INTERVAL, "errors", "picked_from", "monte_carlo"} == {*best.columns}
    assert list(best.columns[:6]) == ["placement", "measure", "accuracy", "aurc", "low", "high"]
    assert repr(best[["placement", "aurc"]]) == repr(pd.DataFrame(best)[["placement", "aurc"]])
    assert repr(best.head(1)) == repr(run.best(count=1))
    for same in (copy.deepcopy(best), pickle.loads(pickle.dumps(best))):
        pd.testing.assert_frame_equal(pd.DataFrame(same), pd.DataFrame(best))
        assert repr(same) == repr(best)


def test_rows_without_intervals_have_no_column_for_them(run: ds.Run) -> None:
    nothing = ds.sweep(zoo.seeded(Named), ["last=.5"], (zoo.vectors(40), torch.arange(40) % 3), passes=3, keep="none",
                       engine="loop", progress=False)  # fmt: skip
    assert "95 % interval" not in repr(nothing.best())
    assert "95 % interval" in repr(nothing)  # one plain pass has one
    assert "vs plain" in repr(nothing.best())


def test_a_run_says_where_it_is(tmp_path: Path) -> None:
    ds.sweep(zoo.seeded(Named), ["last=.5"], (zoo.vectors(40), torch.arange(40) % 3), passes=3, keep="none",
             engine="loop", out=tmp_path, progress=False)  # fmt: skip
    assert str(tmp_path) in repr(ds.open_run(tmp_path)).replace("\n", "")
