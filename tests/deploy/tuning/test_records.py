"""Folders of tunings: read again, gone on with, refused where they are another's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import dropscope as ds
from dropscope.deploy.tuning import tunings
from support import zoo
from support.errors import refused

OPTIONS = {"passes": 8, "rates": (0.1, 0.3, 0.5), "rivals": ["entropy"], "progress": False, "ids": "index"}


def net() -> nn.Module:
    return zoo.seeded(lambda: nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(5)),
                                            nn.Linear(6, 3)))  # fmt: skip


def data() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(240, 6, generator=draw), torch.randint(0, 3, (240,), generator=draw)


def test_a_tuning_is_read_again_and_makes_a_predictor(tmp_path: Path) -> None:
    found = ds.tune(net(), data(), out=tmp_path, **OPTIONS)
    again = ds.open_choice(tmp_path)
    assert str(again) == str(found)
    assert again.pareto.name.tolist() == found.pareto.name.tolist()
    assert again.search is not None
    with refused("model"):
        again.predictor()
    first = found.predictor(0.9, data=data())
    second = again.predictor(0.9, model=net(), data=data())
    assert torch.equal(torch.tensor(first.calibration.uncertainty), torch.tensor(second.calibration.uncertainty))


def test_a_tuning_goes_on_where_it_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ds.tune(net(), data(), out=tmp_path / "whole", **OPTIONS)
    with monkeypatch.context() as patched:
        patched.setattr(tunings, "compare", lambda *args, **options: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ds.tune(net(), data(), out=tmp_path / "killed", **OPTIONS)
    with monkeypatch.context() as patched:
        patched.setattr(tunings, "race", lambda *args, **options: pytest.fail("the race was over"))
        again = ds.tune(net(), data(), out=tmp_path / "killed", **OPTIONS)
    assert again.table.equals(whole.table.assign(milliseconds=again.table.milliseconds))
    assert again.judgement == whole.judgement


def test_a_folder_holds_one_tuning(tmp_path: Path) -> None:
    ds.tune(net(), data(), out=tmp_path, **OPTIONS)
    with refused("out"):
        ds.tune(net(), data(), out=tmp_path, **(OPTIONS | {"passes": 9}))
    (tmp_path / "choice.json").write_text("[]")
    with refused("out"):
        ds.open_choice(tmp_path)
    (tmp_path / "choice.json").unlink()
    with refused("folder"):
        ds.open_choice(tmp_path)
