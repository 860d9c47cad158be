"""Shards: a run divided among processes without a coordinator ends with the rows of one process."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dropscope as ds
from dropscope.runs.rows import RowMaker
from dropscope.runs.shards import Shard
from support import zoo
from support.errors import refused

TABLES = ("rows", "baseline", "intervals", "examples")


@given(st.integers(1, 9), st.lists(st.floats(0, 100), max_size=30))
def test_every_item_is_of_one_shard(of: int, works: list[float]) -> None:
    items = list(enumerate(works))
    shares = [Shard(number, of).share(items, lambda item: item[1]) for number in range(1, of + 1)]
    assert sorted(item for share in shares for item in share) == items
    loads = [sum(work for _, work in share) for share in shares]
    assert max(loads) - min(loads) <= max(works, default=0) + 1e-9


@pytest.mark.parametrize("text", ["", "0/4", "5/4", "1/0", "1", "1/2/3", "-1/4", "1.5/2", None, 1])
def test_what_is_no_shard(text: Any) -> None:
    with refused("shard"):
        Shard.parse(text)


def asked(**changed: Any) -> dict[str, Any]:
    """Each first site of each kind of noise is a part of its own: eight of them."""
    net = zoo.seeded(lambda: nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)), nn.Linear(8, 3)))
    noises = ("bernoulli", "gaussian")
    grid = [f"{site}={rate} noise={noise}" for noise in noises for site in range(4) for rate in (0.2, 0.5)]
    return {"model": net, "placements": grid, "data": (zoo.vectors(40), torch.arange(40) % 3), "passes": 4,
            "keep": "top:3", "engine": "shared", "progress": False} | changed  # fmt: skip


@pytest.fixture(scope="module")
def whole() -> ds.Run:
    return ds.sweep(**asked())


def same(run: ds.Run | None, whole: ds.Run) -> None:
    assert run is not None
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(run, name), getattr(whole, name), check_dtype=False, check_exact=True)


def test_the_last_shard_finishes_the_run(tmp_path: Path, whole: ds.Run) -> None:
    results = [ds.sweep_shard(**asked(), shard=f"{k}/3", out=tmp_path) for k in (2, 3, 1)]
    assert [result.run is None for result in results] == [True, True, False]
    assert sum(result.computed for result in results) == results[-1].there == results[-1].parts == 8
    same(results[-1].run, whole)
    same(ds.open_run(tmp_path), whole)
    again = ds.sweep_shard(**asked(), shard="1/3", out=tmp_path)
    assert (again.computed, again.there) == (0, 8)
    same(again.run, whole)


def test_shards_and_whole_runs_take_each_other_up(tmp_path: Path, whole: ds.Run) -> None:
    done = ds.sweep_shard(**asked(), shard="2/4", out=tmp_path)
    made: list[Any] = []
    plain = RowMaker.rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowMaker, "rows", lambda self, *a: made.append(a) or plain(self, *a))
        same(ds.sweep(**asked(), out=tmp_path), whole)
    assert len(made) == 8 - done.computed
    assert ds.sweep_shard(**asked(), shard="3/4", out=tmp_path).computed == 0


def test_more_shards_than_parts_leave_some_without_work(tmp_path: Path) -> None:
    result = ds.sweep_shard(**asked(), shard="40/40", out=tmp_path)
    assert (result.computed, result.there, result.run) == (0, 0, None)
    assert "0 of 8" in str(result)


def test_a_shard_of_another_run_is_refused(tmp_path: Path) -> None:
    ds.sweep_shard(**asked(), shard="1/2", out=tmp_path)
    with refused("out"):
        ds.sweep_shard(**asked(seed=1), shard="2/2", out=tmp_path)


def test_what_the_first_shard_settled_holds_for_one_that_planned_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: ds.Run
) -> None:
    """The other shard begins the run, with other memory, while this one plans."""
    from dropscope.runs import jobs

    plan = jobs.plan_job
    budgets: list[int] = []

    def overtaken(*args: Any, **options: Any) -> Any:
        job = plan(*args, **options)
        budgets.append(job.memory)
        if len(budgets) == 1:
            ds.sweep_shard(**asked(memory="64MiB"), shard="2/2", out=tmp_path)
        return job

    monkeypatch.setattr(jobs, "plan_job", overtaken)
    result = ds.sweep_shard(**asked(memory="32MiB"), shard="1/2", out=tmp_path)
    assert budgets == [32 << 20, 64 << 20, 64 << 20]  # planned, overtaken, planned again as the other did
    same(result.run, whole)


# --- several processes ------------------------------------------------------------------------------------------------

# Imports once, then runs each shard in a fork of itself.
SCRIPT = textwrap.dedent("""
    import os, sys, torch
    torch.set_num_threads(1)
    sys.path.insert(0, {tests!r})
    from runs.test_shards import asked
    import dropscope as ds
    ds.sweep(**asked(passes=1, keep="none"))
    for line in sys.stdin:
        children = []
        for shard in line.split()[1:]:
            child = os.fork()
            if child == 0:
                ds.sweep_shard(**asked(passes=60), shard=shard, out=line.split()[0])
                os._exit(0)
            children.append(child)
        print(*children, flush=True)
        print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children), flush=True)
""")


def test_four_shards_at_once_of_which_two_are_killed(tmp_path: Path) -> None:
    script = SCRIPT.format(tests=str(Path(__file__).parents[1]))
    environment = {**os.environ, "DROPSCOPE_CAPTURE": "always"}
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert parent.stdin is not None
    assert parent.stdout is not None

    def started(*shards: str) -> list[int]:
        parent.stdin.write(" ".join([str(tmp_path / "run"), *shards]) + "\n")
        parent.stdin.flush()
        return [int(child) for child in parent.stdout.readline().split()]

    children = started("1/4", "2/4", "3/4", "4/4")
    time.sleep(random.Random(1).uniform(0.1, 0.4))
    for child in children[:2]:
        os.kill(child, signal.SIGKILL)
    left = parent.stdout.readline().split()
    assert left[2:] == ["0", "0"]
    started("1/4", "2/4")
    assert parent.stdout.readline() == "0 0\n"
    parent.stdin.close()
    assert parent.wait(timeout=60) == 0
    parent.stdout.close()
    same(ds.open_run(tmp_path / "run"), ds.sweep(**asked(passes=60)))
    assert len(list((tmp_path / "run" / "rows").iterdir())) == 8  # none doubled, none torn
