"""Monte Carlo errors of the scores of a sweep: what other masks would move them by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import dropscope as ds
from dropscope.runs.folders import TABLES
from dropscope.runs.rows import RowMaker
from dropscope.runs.store import Store
from support import zoo

PLACEMENTS = ["0=.3", "last=.3", "0=.5,2=.2"]


def net() -> nn.Module:
    return zoo.seeded(
        lambda: nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    )


def data(count: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(count, 8, generator=draw)
    with torch.no_grad():
        return x, (net()(x) * 3 + torch.randn(count, 4, generator=draw)).argmax(1)


def sweep(**options: Any) -> ds.Run:
    given = {"passes": 32, "scores": ["aurc", "error_auroc", "brier"], "progress": False}
    return ds.sweep(net(), PLACEMENTS, data(), **{**given, **options})


def errors(run: ds.Run) -> pd.Series:
    return run.intervals.set_index(["placement", "measure", "score"]).monte_carlo.sort_index()


def test_an_error_is_how_far_another_seed_moves_a_score() -> None:
    given = {"measures": ["bald", "predictive_entropy"], "passes": 24, "scores": ["aurc", "brier"]}
    runs = [ds.sweep(net(), ["last=.3"], data(200), seed=seed, progress=False, **given) for seed in range(10)]
    table = pd.concat([run.intervals for run in runs])
    found = (
        table[table.placement != "none"]
        .groupby("score")
        .apply(
            lambda own: np.sqrt((own.monte_carlo**2).mean() / own.groupby("measure").value.var().mean()),
            include_groups=False,
        )
    )
    assert found.index.tolist() == ["accuracy", "aurc", "brier"]
    assert found.between(0.6, 1.5).all(), found


@pytest.mark.parametrize("options", [{"engine": "shared"}, {"batch_size": 7}, {"draws": "stratified", "passes": 100}])
def test_engines_and_batches_give_the_same_errors(options: dict[str, Any]) -> None:
    same = {name: value for name, value in options.items() if name in ("draws", "passes")}
    first, second = errors(sweep(engine="loop", **same)), errors(sweep(**options))
    np.testing.assert_allclose(first, second, rtol=0.05, atol=2e-4)
    assert first["0=0.3"].gt(0).all()
    assert (first["none"] == 0).all()


def test_a_large_sweep_runs_its_best_rows_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    small = sweep()
    monkeypatch.setattr(RowMaker, "keeps_blocks", False)
    large = sweep()
    best = large.best("aurc", 10).placement.unique()
    for placement in best:
        np.testing.assert_allclose(errors(large)[placement], errors(small)[placement], rtol=0.05, atol=2e-4)
    assert errors(sweep(keep="none")).index.get_level_values("placement").unique().tolist() == ["none"]


@pytest.mark.parametrize(
    "options",
    [
        {"passes": 1},
        {"passes": 3},
        {"passes": 32, "draws": "stratified"},
        {"measures": ["bald", lambda passes: passes.std(0).amax(1)]},
    ],
)
def test_few_blocks_and_measures_of_the_passes_have_no_errors(options: dict[str, Any]) -> None:
    run = sweep(**options)
    assert errors(run).drop("none").isna().all()
    assert "MC error" not in str(run)


def test_tables_and_the_verdict_say_what_masks_could_make_of_a_difference() -> None:
    run = sweep(passes=16)
    best = run.best("aurc", 3)
    assert best.monte_carlo.gt(0).all()
    assert "MC error" in repr(best)
    verdict = run.verdict
    assert verdict is not None
    assert verdict.monte_carlo == pytest.approx(best.monte_carlo.iloc[0])
    close = abs(verdict.difference) < 2 * (verdict.monte_carlo or 0)
    assert close == ("other masks" in str(verdict))


def test_a_folder_has_them_and_one_without_is_read(tmp_path: Path) -> None:
    run = sweep(out=tmp_path)
    pd.testing.assert_series_equal(errors(ds.open_run(tmp_path)), errors(run))
    tables = {name: pd.read_parquet(tmp_path / f"{name}.parquet") for name in TABLES}
    Store(tmp_path).write_tables(tables | {"intervals": tables["intervals"].drop(columns="monte_carlo")})
    earlier = ds.open_run(tmp_path)
    assert earlier.best("aurc", 3).monte_carlo.isna().all()
    assert earlier.verdict is not None
    assert earlier.verdict.monte_carlo is None
