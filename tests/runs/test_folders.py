"""Finished runs from their folders: the same tables again, several folders as one, and what is no finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import dropscope as ds
from support import zoo
from support.errors import refused

TABLES = ("rows", "baseline", "intervals", "examples")


def net(seed: int = 0) -> nn.Module:
    return zoo.seeded(lambda: nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)), seed)


def swept(out: Path | None, placements: list[str], **changed: Any) -> ds.Run:
    given = {"model": net(), "data": (zoo.vectors(20), torch.arange(20) % 3), "passes": 3, "keep": "top:12"} | changed
    return ds.sweep(placements=placements, out=out, progress=False, **given)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "first"
    swept(out, ["0=.1", "0@output=.5", "0@before_activation=.5", "none"])
    return out


def test_a_run_comes_back_as_it_was(folder: Path) -> None:
    was = swept(folder, ["0=.1", "0@output=.5", "0@before_activation=.5", "none"])
    run = ds.open_run(folder)
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(run, name), getattr(was, name), check_dtype=False)
    assert (run.engine, run.folder, run.levels) == (was.engine, folder, was.levels)
    assert run.spec == was.spec
    pd.testing.assert_frame_equal(run.best(), was.best(), check_dtype=False)


def test_several_folders_are_one_run_and_duplicates_come_once(folder: Path, tmp_path: Path) -> None:
    other = swept(tmp_path, ["0=.1", "last=.3"])
    both = ds.open_run(folder, str(tmp_path))
    first = ds.open_run(folder)
    assert both.rows.placement.unique().tolist() == [*first.rows.placement.unique(), "last=0.3"]
    assert not both.rows.duplicated(["placement", "measure"]).any()
    assert not both.intervals.duplicated(["placement", "measure", "score"]).any()
    assert (both.examples.groupby(["placement", "measure"]).size() == 20).all()
    pd.testing.assert_frame_equal(both.rows.head(len(first.rows)), first.rows, check_dtype=False)
    added = both.rows[both.rows.placement == "last=0.3"].reset_index(drop=True)
    wanted = other.rows[other.rows.placement == "last=0.3"].reset_index(drop=True)
    pd.testing.assert_frame_equal(added, wanted, check_dtype=False)
    whole = swept(None, ["0=.1", "0@output=.5", "0@before_activation=.5", "none", "last=.3"])
    assert both.spec == whole.spec
    assert both.folder is None


def test_the_plain_placement_of_a_later_folder_is_kept(folder: Path, tmp_path: Path) -> None:
    swept(tmp_path, ["last=.3"])
    assert "none" in set(ds.open_run(tmp_path, folder).rows.placement)


def test_both_engines_may_be_read_as_one(folder: Path, tmp_path: Path) -> None:
    swept(tmp_path, ["last=.3"], engine="loop")
    assert ds.open_run(folder, tmp_path).engine == "shared and loop"


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"passes": 4}, "passes"),
        ({"model": net(1)}, "weights"),
        ({"data": (zoo.vectors(20) + 1, torch.arange(20) % 3)}, "data"),
        ({"seed": 1}, "seed"),
        ({"label": "plain"}, "label"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(
    folder: Path, tmp_path: Path, changed: dict[str, Any], named: str
) -> None:
    swept(tmp_path, ["last=.3"], **({"keep": "none", "engine": "loop"} | changed))
    with refused("folders") as caught:
        ds.open_run(folder, tmp_path)
    assert named in str(caught.value.received)


def test_what_is_no_finished_run_is_refused(tmp_path: Path) -> None:
    with refused("folders"):
        ds.open_run()
    with refused("folder"):
        ds.open_run(tmp_path)
    placements = ["0=.1", "0=.3"]
    swept(tmp_path, placements, engine="loop")
    (tmp_path / "intervals.parquet").unlink()  # killed before the end, or written by an older version
    with refused("folder"):
        ds.open_run(tmp_path)
    swept(tmp_path, placements, engine="loop")
    assert len(ds.open_run(tmp_path).rows) == 2 * 5
    two_parts = tmp_path / "two"
    swept(two_parts, ["0=.1", "last=.3"], engine="shared")
    next((two_parts / "rows").glob("part-*.parquet")).unlink()
    with refused("folder") as caught:
        ds.open_run(two_parts)
    assert "1 of 2" in str(caught.value.received)


PLACEMENTS = ["0=.1", "0=.5"]


def test_a_finished_sweep_answers_without_planning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = swept(tmp_path, PLACEMENTS)
    monkeypatch.setattr("dropscope.runs.jobs.choose_engine", lambda *_, **__: pytest.fail("it was planned"))
    again = swept(tmp_path, PLACEMENTS)
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(again, name), getattr(first, name))
    with refused("out"):
        swept(tmp_path, PLACEMENTS, seed=1)
    with refused("out"):
        swept(tmp_path, PLACEMENTS, engine="loop")


def test_more_finalists_than_a_folder_has_are_looked_at(tmp_path: Path) -> None:
    few = swept(tmp_path, PLACEMENTS, keep="top:1")
    every = swept(tmp_path, PLACEMENTS, keep="all")
    pd.testing.assert_frame_equal(every.rows, few.rows)
    assert len(every.intervals) > len(few.intervals)
