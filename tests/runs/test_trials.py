"""`try_out`: what it tries without being told, how it splits, and that it is right where the answer is known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import pyplot
from torch import Tensor, nn

import dropscope as ds
from dropscope.engine import open_session
from dropscope.injection import examine
from dropscope.model import Call
from dropscope.runs.candidates import Candidates, last_block
from dropscope.runs.partitions import split
from support import zoo
from support.errors import refused
from support.planted_votes import Votes


def net() -> nn.Module:
    return zoo.seeded(lambda: nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3)))


def data(n: int = 120) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(n, 8, generator=draw), torch.randint(0, 3, (n,), generator=draw)


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(3))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def candidates(model: nn.Module) -> Candidates:
    return Candidates.of(examine(model, Call.of(torch.zeros(2, 8))), (0.1, 0.5), 100)


def test_the_models_own_dropout_the_last_layer_and_every_site_are_tried() -> None:
    texts = [str(placement) for placement in candidates(net()).placements]
    assert texts == ["own", "last=0.1", "last=0.5", "0=0.1", "0=0.5"]


def test_the_last_numbered_block_is_tried_as_a_whole() -> None:
    model = zoo.seeded(Blocks)
    assert last_block(examine(model, Call.of(torch.zeros(2, 8)))) == ("layers.2.0", "layers.2.2")
    assert "layers.2.0=0.5,layers.2.2=0.5" in [str(placement) for placement in candidates(model).placements]


def test_a_small_budget_takes_passes_first_then_sites_over_the_whole_depth() -> None:
    all_of_it = candidates(zoo.seeded(Blocks))
    half = all_of_it.within(expected=100, budget=50)
    assert (half.passes, half.sites) == (50, all_of_it.sites)
    tenth = all_of_it.within(expected=100, budget=10)
    assert tenth.passes == 20
    assert 0 < len(tenth.sites) < len(all_of_it.sites)
    assert tenth.first == all_of_it.first
    assert "passes" in tenth.remarks[0]
    assert all_of_it.within(expected=10, budget=50) is all_of_it


def test_halves_are_disjoint_complete_and_the_same_each_time() -> None:
    inputs, labels = data(41)
    halves = [split(open_session(net(), (inputs, labels), ids="index")) for _ in range(2)]
    ids = [[int(value) for value in part.ids] for part in halves[0]]
    assert sorted(ids[0] + ids[1]) == list(range(41))
    assert [part.fingerprint for part in halves[0]] == [part.fingerprint for part in halves[1]]
    assert halves[0][0].fingerprint != halves[0][1].fingerprint


def test_a_group_is_never_on_both_sides() -> None:
    groups = [f"patient {i // 4}" for i in range(80)]
    choosing, judging = split(open_session(net(), data(80), groups=groups))
    assert not set(choosing.groups or ()) & set(judging.groups or ())
    assert choosing.n + judging.n == 80


def test_a_choice_holds_its_evidence_and_is_written(tmp_path: Path) -> None:
    before = {name: value.clone() for name, value in net().state_dict().items()}
    model = net()
    choice = ds.try_out(model, data(), passes=4, out=tmp_path / "try", progress=False)
    assert set(choice.evidence.rows.placement) == {str(p) for p in candidates_of_try(model)}
    assert choice.judgement.examples == 60 == len(choice.examples)
    assert choice.judgement.picked_from == 1
    assert (choice.placement is None) == (choice.judgement.word != "better")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    written = json.loads((tmp_path / "try" / "choice.json").read_text())
    assert written["verdict"] == choice.judgement.word
    assert written["measure"] == choice.measure
    assert len((tmp_path / "try" / "examples.csv").read_text().splitlines()) == 61
    again = ds.try_out(model, data(), passes=4, out=tmp_path / "try", progress=False)
    assert again.judgement == choice.judgement
    assert max(len(line) for line in str(choice).splitlines()) < 80
    assert repr(choice) == str(choice)
    axes = choice.plot()
    assert len(axes.get_lines()) == 3  # both rankings, and one that knows nothing
    pyplot.close(axes.figure)


def test_a_folder_holds_one_trial(tmp_path: Path) -> None:
    ds.try_out(net(), data(), passes=4, out=tmp_path, progress=False)
    with refused("out"):
        ds.try_out(net(), data(), passes=6, out=tmp_path, progress=False)
    (tmp_path / "trial.json").write_text('{"kept": 3}')
    with refused("out"):
        ds.try_out(net(), data(), passes=4, out=tmp_path, progress=False)


def test_a_trial_never_compiles_because_its_budget_is_for_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dropscope.engine.shared._COMPILING_REPAYS", 0)  # so that a sweep of any size would
    compiled: list[object] = []
    monkeypatch.setattr("dropscope.engine.shared.SharedEngine.compile", lambda engine: compiled.append(engine))
    ds.try_out(net(), data(), passes=5, engine="shared", progress=False)
    assert not compiled
    ds.sweep(net(), ["last=0.5"], data(), 5, engine="shared", progress=False)
    assert compiled


def candidates_of_try(model: nn.Module) -> list[ds.Placement]:
    return Candidates.of(examine(model, Call.of(torch.zeros(2, 8))), (0.1, 0.3, 0.5), 4).placements


def test_noise_that_finds_the_errors_is_chosen() -> None:
    """Logits differ by the same amount everywhere, so one plain pass knows nothing; the evidence behind them differs.

    Right: 1.5 against 0. Wrong: 6.5 against 5. Under noise, large votes that cancel spread far, small ones do not.
    """
    draw = np.random.default_rng(0)
    wrong = torch.tensor(draw.random(600) < 0.25)
    base = torch.where(wrong, 5.0, 0.0)
    inputs = torch.stack([base + 1.5, base], 1)
    choice = ds.try_out(Votes(), (inputs, wrong.long()), passes=30, ids="index", progress=False)
    assert choice.judgement.word == "better"
    assert choice.placement is not None
    assert choice.passes == 30


def test_an_untrained_network_gets_one_plain_pass() -> None:
    choice = ds.try_out(net(), data(400), passes=10, progress=False)
    assert choice.placement is None
    assert choice.passes == 1
    assert choice.measure.startswith("plain_")


@pytest.mark.parametrize(
    ("argument", "options"),
    [("budget", {"budget": 0}), ("budget", {"budget": "long"}), ("rates", {"rates": [2.0]}), ("passes", {"passes": 0})],
)
def test_arguments_are_checked_first(argument: str, options: dict[str, object]) -> None:
    with refused(argument):
        ds.try_out(net(), data(), **options)


def test_data_must_have_labels_and_enough_examples() -> None:
    with refused("data"):
        ds.try_out(net(), data()[0])
    with refused("data"):
        ds.try_out(net(), data(20))
    with refused("data"):
        ds.try_out(net(), data(60), groups=["one patient"] * 60)
