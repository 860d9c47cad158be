"""The demo: the whole flow with few passes, its files and its verdict."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch

from dropscope.demo import read_digits, run_demo
from support.errors import refused


def test_the_whole_flow(tmp_path: Path) -> None:
    said: list[str] = []
    state = torch.get_rng_state()
    run = run_demo(tmp_path / "demo", passes=2, say=said.append)
    assert torch.equal(state, torch.get_rng_state())
    text = "\n".join(said)
    assert run.engine == "shared"
    assert len(run.rows) == 999 * 5
    assert "Verdict: " in text
    assert "deferring 10 % lifts accuracy" in text
    assert str(tmp_path / "demo" / "curves.png") in text
    assert (tmp_path / "demo" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert run.folder is not None
    parts = list((run.folder / "rows").glob("part-*.parquet"))
    assert sum(len(pd.read_parquet(path)) for path in parts) == 999 * 5


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said: list[str] = []
    with refused("out"):
        run_demo(tmp_path / "file", say=said.append)
    assert said == []


def test_the_data_are_always_in_the_same_order() -> None:
    (images, labels), (again, _) = read_digits(), read_digits()
    assert images.shape == (1797, 1, 8, 8)
    assert (float(images.min()), float(images.max())) == (0.0, 1.0)
    assert torch.equal(images, again)
    assert set(labels.tolist()) == set(range(10))
