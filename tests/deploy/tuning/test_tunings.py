"""`tune`: right where the answer is known, everything on equal terms, and data that are used once."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import dropscope as ds
from dropscope.deploy.tuning import plan_tuning
from dropscope.deploy.tuning.tunings import with_front
from support import zoo
from support.errors import refused
from support.planted_votes import Votes, margin_knows_all, noise_finds_the_errors

QUICK = {"passes": 16, "rates": (0.2, 0.5), "rivals": ["entropy"], "ids": "index", "progress": False}


class Deep(nn.Module):
    """Six layers: too many for the whole grid at six rates."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(5))
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return self.head(self.drop(x))


def data(n: int = 400, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=draw)
    return x, x[:, :3].add(torch.randn(n, 3, generator=draw)).argmax(1)


@pytest.fixture(scope="module")
def race() -> ds.TunedChoice:
    return ds.tune(zoo.seeded(Deep), data(), passes=16, progress=False)


@pytest.mark.parametrize("seed", range(3))
def test_noise_that_finds_the_errors_is_chosen(seed: int) -> None:
    choice = ds.tune(Votes(), noise_finds_the_errors(600, seed), **QUICK)
    assert choice.placement is not None
    assert choice.judgement.high < 0
    assert choice.passes == 16
    assert choice.chosen_name in set(choice.table.name)


@pytest.mark.parametrize("seed", range(3))
def test_one_plain_pass_is_chosen_where_nothing_ranks_better(seed: int) -> None:
    choice = ds.tune(Votes(), margin_knows_all(600, seed), **QUICK)
    assert choice.placement is None
    assert choice.passes == 1
    assert choice.measure.startswith("plain_")
    assert "does not help" in choice.verdict


def test_few_sites_are_swept_whole() -> None:
    choice = ds.tune(Votes(), margin_knows_all(200), **QUICK)
    assert choice.search is None
    assert set(choice.evidence.rows.placement) == {"hidden=0.2", "hidden=0.5", "last=0.2", "last=0.5"}


def test_many_sites_race_and_at_most_five_run_on_all_examples(race: ds.TunedChoice) -> None:
    assert race.search is not None
    finalists = set(race.search.placement[race.search.state == "finalist"])
    assert 1 <= len(finalists) <= 5
    swept = set(race.evidence.rows.placement)
    assert finalists <= swept
    assert len(swept) <= 7
    assert race.evidence.spec["examples"] == race.sizes["search"]
    assert race.share < 0.03


def test_rules_and_rivals_stand_beside_the_finalists(race: ds.TunedChoice) -> None:
    names = set(race.table.name)
    assert {"own", "entropy", "max_probability", "laplace", "temperature"} <= names
    assert any(name.startswith("last=") for name in names)
    assert race.table.accuracy.nunique() == 1  # of the plain pass, for all
    assert set(race.differences.name) == names


def test_every_example_is_used_once() -> None:
    inputs, labels = data(300)
    choice = ds.tune(
        zoo.seeded(Deep), (inputs, labels), sites=["head@input"], reserve=0.3, **(QUICK | {"rates": [0.3]})
    )
    searched, judged = (set(run.examples.id) for run in (choice.evidence, choice.judged))
    assert choice.unused is not None
    unused = {str(value) for value in choice.unused.ids}
    assert [len(part) for part in (searched, judged, unused)] == list(choice.sizes.values())
    assert not searched & judged
    assert (searched | judged | unused) == {str(n) for n in range(300)}
    assert not (searched | judged) & unused


def test_groups_stay_together() -> None:
    groups = [f"patient {n // 6}" for n in range(300)]
    choice = ds.tune(
        zoo.seeded(Deep), data(300), groups=groups, **(QUICK | {"rates": [0.3]}), sites=["layers.0", "layers.1"]
    )
    parts = [set(run.examples.group) for run in (choice.evidence, choice.judged)]
    assert not parts[0] & parts[1]
    assert choice.unused is not None
    assert not set(map(str, choice.unused.groups or ())) & (parts[0] | parts[1])


def test_the_predictor_is_calibrated_on_unused_examples(race: ds.TunedChoice) -> None:
    predictor = race.predictor(target_risk=0.6)
    assert predictor.calibration.n == race.sizes["unused"]
    given = race.predictor(target_risk=0.6, data=data(50, seed=9))
    assert given.calibration.n == 50
    assert given.recipe == predictor.recipe


def test_without_a_reserve_the_examples_that_judged_calibrate() -> None:
    choice = ds.tune(Votes(), margin_knows_all(200), reserve=0, **QUICK)
    assert choice.unused is None
    assert choice.predictor(0.6).calibration.n == choice.sizes["judging"]


def test_other_objectives_by_name() -> None:
    choice = ds.tune(Votes(), noise_finds_the_errors(600), objective="error_auroc", **QUICK)
    assert choice.judgement.score == "error_auroc"
    assert choice.judgement.low > 0
    assert choice.placement is not None


def test_the_front_keeps_what_nothing_dominates() -> None:
    draw = np.random.default_rng(0)
    rows = pd.DataFrame(draw.integers(0, 4, (30, 3)), columns=["accuracy", "aurc", "cost"])
    front = with_front(rows).front
    for n, row in rows.iterrows():
        dominated = any(
            o.accuracy >= row.accuracy and o.aurc <= row.aurc and o.cost <= row.cost and tuple(o) != tuple(row)
            for _, o in rows.iterrows()
        )
        assert front[n] == (not dominated)


def test_a_choice_prints_the_evidence(race: ds.TunedChoice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = str(race)
    assert max(map(len, text.splitlines())) <= 80
    for said in (race.verdict.split()[0], "race", "●", "own", str(race.sizes["judging"])):
        assert said in text
    html = race._repr_html_()
    assert html.startswith("<div>")
    assert "own" in html
    assert isinstance(race, ds.Choice)


def test_a_small_budget_begins_with_fewer_placements() -> None:
    free, tight = (plan_tuning(zoo.seeded(Deep), data(200), budget=budget) for budget in (None, 0.01))
    assert len(tight.opening) < len(free.opening)
    assert tight.remarks
    assert not free.whole
    assert "race" in str(free)


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("objective", {"objective": "nll"}),
        ("passes", {"passes": 0}),
        ("rates", {"rates": [0.0]}),
        ("rates", {"rates": [2.0]}),
        ("reserve", {"reserve": 1}),
        ("budget", {"budget": 0}),
        ("sites", {"sites": "head"}),
        ("measures", {"measures": ["plain_entropy"]}),
    ],
)
def test_arguments_are_checked_first(argument: str, options: dict[str, object]) -> None:
    with refused(argument):
        ds.tune(zoo.seeded(Deep), data(), **options)


def test_data_must_have_labels_errors_and_enough_examples() -> None:
    model = zoo.seeded(Deep)
    with refused("data"):
        ds.tune(model, data()[0], progress=False)
    with refused("data"):
        ds.tune(model, data(45), progress=False, reserve=0.5)
    inputs, _ = data(200)
    with refused("data"):
        ds.tune(model, (inputs, model.eval()(inputs).argmax(1)), progress=False)
