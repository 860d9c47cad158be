"""The where-to-drop study's tables, figures and claims, from rows with known effects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import nn

from dropscope import measures, scores
from dropscope.analysis import resampling as intervals
from dropscope.placement.grid import PlacementGrid
from dropscope.placement.placement import Placement
from dropscope.report.claims import Claim
from dropscope.studies.where_to_drop import tables
from dropscope.studies.where_to_drop.answers import answer, choices
from dropscope.studies.where_to_drop.claims import judge
from dropscope.studies.where_to_drop.curves import batch_scores, curve_pair, paired_bootstrap, table_three
from dropscope.studies.where_to_drop.figures import FIGURES, figure_8, write_figures
from dropscope.studies.where_to_drop.report import write_tables_and_figures
from dropscope.studies.where_to_drop.rows import NetworkResult, join_results
from dropscope.studies.where_to_drop.rules import RULES
from dropscope.studies.where_to_drop.tasks import Task
from support.errors import refused
from support.judged_claims import check_claims

CIFAR = ("conv1", "conv2", "conv3", "fc1")
EFFNET = ("stem", "block1", "block2", "block3")
PAIR = ("fc1=0.8", "conv2=0.7,conv3=0.8,fc1=0.4")


def task_of(name: str = "cifar10-cnn", layers: tuple[str, ...] = CIFAR, n: int = 300) -> Task:
    data = torch.zeros(n, 1), torch.zeros(n, dtype=torch.long)
    penultimate = ("block2", "block3") if "block2" in layers else layers[-1:]
    return Task(name, layers, penultimate, nn.Identity, None, data, data)


def rows_of(
    layers: tuple[str, ...], draw: np.random.Generator, rates: tuple[float, ...] = (0.1, 0.5, 0.9), rule: float = 0.25
) -> pd.DataFrame:
    """Rows whose effects are known: the last layer alone has `rule` times the penalty of the rest, the penalty rises
    with p_mean except for variation_predicted, AURC follows the penalty except for variation_predicted."""
    frames = []
    grid = PlacementGrid(layers, rates)
    rate = np.array([[{t.name: t.rate for t in p.terms}.get(name, 0.0) for name in layers] for p in grid])
    p_mean = rate.sum(1) / (rate > 0).sum(1)
    alone = (rate[:, -1] > 0) & ((rate > 0).sum(1) == 1)
    for measure in measures.DEFAULT:
        falling = measure == "variation_predicted"
        level = (0.13 - 0.11 * p_mean if falling else 0.002 + 0.02 * p_mean) * np.where(alone, rule, 1.0)
        level = level * np.exp(0.02 * draw.standard_normal(len(level)))
        area = 0.3 + (-1 if falling else 1) * level + 2e-4 * draw.standard_normal(len(level))
        table = {"isotonic_penalty": level / 1.8, "rearrangement_penalty": level, "running_minimum_penalty": 3 * level}
        table |= {"accuracy": 0.7 - 0.5 * p_mean, "aurc": area, "augrc": area / 2, "error_auroc": 1 - area}
        table |= {"error_auprc": 1 - area, "cost": 1.0}
        frames.append(pd.DataFrame({"index": range(len(grid)), "measure": measure, **table}))
    single = pd.concat(frames, ignore_index=True).sort_values("index", kind="stable")
    before, after = (
        [str(Placement({t.name: t.rate for t in p.terms}, position)) for p in grid]
        for position in ("before_activation", "after_activation")
    )
    where = single.pop("index").to_numpy()
    first = single.assign(placement=np.array(before)[where], equivalent_to=None)
    second = single.assign(placement=np.array(after)[where], equivalent_to=np.array(before)[where])
    return pd.concat([first, second], ignore_index=True)


def curves_of(draw: np.random.Generator, n: int, placements: tuple[str, ...] = PAIR) -> pd.DataFrame:
    """The first placement ranks well, the second hardly."""
    frames = []
    for placement, use in zip(placements, (2.0, 0.2), strict=True):
        correct = draw.random(n) < 0.7
        for measure in measures.DEFAULT:
            values = draw.standard_normal(n) - use * correct
            table = {"placement": placement, "measure": measure, "example": range(n), "uncertainty": values}
            frames.append(pd.DataFrame({**table, "correct": correct}))
    return pd.concat(frames, ignore_index=True)


def result_of(seed: int, layers: tuple[str, ...] = CIFAR, n: int = 300, **options: object) -> NetworkResult:
    draw = np.random.default_rng(seed)
    rows = rows_of(layers, draw, **options)  # type: ignore[arg-type]
    placements = (f"{layers[-1]}=0.8", f"{layers[1]}=0.7,{layers[2]}=0.8,{layers[3]}=0.4")
    inputs = rows[rows["equivalent_to"].isna()].assign(
        placement=lambda r: r["placement"].str.replace("before_activation", "input"),
        rearrangement_penalty=lambda r: 1.5 * r["rearrangement_penalty"],
    )
    score = {name: rows[name].iloc[0] for name in ("isotonic_penalty", "rearrangement_penalty", "accuracy")}
    baseline = pd.DataFrame([{"placement": "none", "measure": "plain_entropy", "aurc": 0.25, "cost": 1.0, **score}])
    gap = 0.01 + 0.001 * draw.standard_normal()
    chosen = pd.DataFrame(
        [
            {"placement": "fc1=0.1", "measure": measure, "aurc": 0.25 + gap, "plain_aurc": 0.25, "difference": gap,
             "low": gap - 0.004, "high": gap + 0.004}
            for measure in measures.DEFAULT
        ]
    )  # fmt: skip
    accuracy = 0.73 + 0.003 * draw.standard_normal()
    levels = scores.reference_levels(0.73, n, draws=20)
    return NetworkResult(
        f"seed {seed}", accuracy, rows, baseline, levels, curves_of(draw, n, placements), inputs, chosen
    )


def claims(task: Task, results: list[NetworkResult]) -> list[Claim]:
    study = join_results(task, results)
    return judge(study, tables.effect_table(study))


def test_verdicts_follow_from_their_evidence_and_claims_are_registered(three: list[NetworkResult]) -> None:
    effnet = task_of("mammography", EFFNET), [result_of(seed, EFFNET) for seed in range(3)]
    for task, results in ((task_of(), three), (task_of(), three[:1]), effnet):
        check_claims(claims(task, results), RULES)
    assert all(claim.evidence for claim in claims(task_of(), three) if claim.name.startswith(("useful", "penultimate")))


def by_name(judged: list[Claim]) -> dict[str, Claim]:
    assert len({claim.name for claim in judged}) == len(judged)
    return {claim.name: claim for claim in judged}


@pytest.fixture(scope="module")
def three() -> list[NetworkResult]:
    return [result_of(seed) for seed in range(3)]


@pytest.fixture(scope="module")
def judged(three: list[NetworkResult]) -> list[Claim]:
    return claims(task_of(), three)


# --- claims -----------------------------------------------------------------------------------------------------------


def test_known_effects_are_found_over_networks(judged: list[Claim]) -> None:
    named = by_name(judged)
    verdicts = {name: claim.verdict for name, claim in named.items()}
    for measure in measures.DEFAULT:
        for score in ("isotonic_penalty", "rearrangement_penalty"):
            assert verdicts[f"penultimate-fc1-{measure}-{score}"] == "supported"
        assert verdicts[f"penultimate-fc1-{measure}-single"] == "supported"
        falling = measure == "variation_predicted"
        assert verdicts[f"penultimate-fc1-{measure}-aurc"] == ("contradicted" if falling else "supported")
        assert verdicts[f"penultimate-fc1-{measure}-single-aurc"] == ("contradicted" if falling else "supported")
        assert verdicts[f"useful-{measure}"] == ("contradicted" if falling else "supported")
        assert verdicts[f"position-input-{measure}"] == "contradicted"  # by half as much again in one penalty
        assert verdicts[f"n_layers-{measure}"] != "undecided"
    assert verdicts["halves-fc1-isotonic_penalty"] == verdicts["halves-fc1-rearrangement_penalty"] == "supported"
    for name in ("predictive_entropy", "variation_predicted", "opposite"):
        assert verdicts[f"p_mean-{name}"] == "supported"
    assert verdicts["position-before-after"] == "supported"
    assert "identity" in named["position-before-after"].how
    assert verdicts["beats-plain"] == "contradicted"
    assert verdicts["accuracy"] == "undecided"  # 300 examples do not tell 73 from 70 %
    assert verdicts["table-3-bound"] == "contradicted"
    assert "largest of ours 1.800" in named["table-3-bound"].ours


def test_the_opposite_is_found_too() -> None:
    judged = by_name(claims(task_of(), [result_of(seed, rule=4.0) for seed in range(3)]))
    assert judged["penultimate-fc1-bald-isotonic_penalty"].verdict == "contradicted"
    assert judged["halves-fc1-rearrangement_penalty"].verdict == "contradicted"


def changed(result: NetworkResult, rows: pd.Series, measure: str, factor: np.ndarray | float) -> NetworkResult:
    """The result with the penalties of some rows of one measure times a factor."""
    chosen = rows & (result.rows["measure"] == measure)
    penalties = ["isotonic_penalty", "rearrangement_penalty", "running_minimum_penalty"]
    return replace(
        result,
        rows=result.rows.assign(
            **{p: result.rows[p] * np.where(chosen, factor, 1.0) for p in penalties},  # type: ignore[arg-type]
        ),
    )


def test_the_first_layer_alone_is_the_highest_where_it_is(three: list[NetworkResult], judged: list[Claim]) -> None:
    assert by_name(judged)["highest-conv1-variation_predicted"].verdict != "supported"
    higher = []
    for result in three:
        alone = result.rows["placement"].str.fullmatch("conv1@[a-z_]+=[0-9.]+")
        higher.append(changed(result, alone, "variation_predicted", 3.0))
    named = by_name(claims(task_of(), higher))
    assert named["highest-conv1-variation_predicted"].verdict == "supported"
    assert named["highest-conv1-variation_max"].verdict != "supported"
    assert "several layers" in named["highest-conv1-variation_max"].ours


def test_the_shape_of_the_rates_moves_a_penalty_where_it_does(three: list[NetworkResult]) -> None:
    flat, tilted = [], []
    for result in three:
        own = join_results(task_of(), [result])
        skewness = own.every["skewness"].fillna(0.0).to_numpy()
        level = 0.01 / result.rows["rearrangement_penalty"].to_numpy()
        noise = np.exp(0.02 * np.random.default_rng(len(flat)).standard_normal(len(level)))
        every = pd.Series(data=True, index=result.rows.index)
        flat.append(changed(result, every, "bald", level * noise))
        tilted.append(changed(result, every, "bald", level * noise * (1 + 0.3 * skewness)))
    named = by_name(claims(task_of(), flat))
    assert named["skewness-bald"].verdict == named["kurtosis-bald"].verdict == "equivalent"
    assert by_name(claims(task_of(), tilted))["skewness-bald"].verdict == "supported"


def test_rules_need_more_than_one_network(three: list[NetworkResult]) -> None:
    judged = claims(task_of(), three[:1])
    for claim in judged:
        if claim.name.startswith(
            ("penultimate", "halves", "highest", "p_mean", "skewness", "useful", "n_layers", "position-input", "single")
        ):
            assert claim.verdict == "undecided", claim.name
            assert "nan" not in claim.ours
    named = by_name(judged)
    assert named["beats-plain"].verdict == "contradicted"  # from the bootstrap over test examples
    assert "one network" in named["beats-plain"].how
    assert "Wilson" in named["accuracy"].how


def test_the_interval_of_a_rule_is_students(three: list[NetworkResult], judged: list[Claim]) -> None:
    values = []
    for result in three:
        own = result.rows[(result.rows["measure"] == "bald") & result.rows["equivalent_to"].isna()]
        several = own["placement"].str.contains(",")
        fc1 = ~several & own["placement"].str.startswith("fc1")
        values.append(own.loc[fc1, "aurc"].mean() - own.loc[several, "aurc"].mean())
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    text = by_name(judged)["penultimate-fc1-bald-aurc"].ours
    assert f"({low:.5f} to {high:.5f})" in text or f"({low:.6f} to {high:.6f})" in text


def test_a_tie_is_not_a_win_of_many_tests(three: list[NetworkResult]) -> None:
    """Intervals of the choice are at 1 − .05/5; one network's bootstrap is widened by as much."""
    chosen = three[0].chosen
    assert chosen is not None
    near = chosen.assign(difference=-0.01, low=-0.0195, high=-0.0005)
    judged = by_name(claims(task_of(), [replace(three[0], chosen=near)]))
    assert judged["beats-plain"].verdict == "undecided"
    far = chosen.assign(difference=-0.01, low=-0.012, high=-0.008)
    assert by_name(claims(task_of(), [replace(three[0], chosen=far)]))["beats-plain"].verdict == "supported"


def test_ends_that_a_smaller_grid_lacks_are_not_compared() -> None:
    judged = by_name(claims(task_of(), [result_of(seed, rates=(0.1, 0.7)) for seed in range(2)]))
    assert judged["p_mean-predictive_entropy-0.9"].verdict == "undecided"
    assert "no placement" in judged["p_mean-predictive_entropy-0.9"].how
    assert judged["p_mean-variation_predicted-0.1"].ours != "not measured"


def test_inputs_at_other_rates_have_no_pairs() -> None:
    other, full = result_of(0, rates=(0.3,)), result_of(0, rates=(0.1, 0.7))
    judged = by_name(claims(task_of(), [replace(full, inputs=other.inputs)]))
    assert judged["position-input"].verdict == "undecided"
    assert "in common" in judged["position-input"].how


def test_networks_that_agree_by_chance_are_no_certainty() -> None:
    """Equal accuracies have a t interval of no width; the test examples still have one."""
    results = [replace(result_of(seed), accuracy=0.712) for seed in range(2)]
    judged = by_name(claims(task_of(n=300), results))
    assert judged["accuracy"].verdict == "undecided"


def test_without_a_choice_nothing_is_said_about_the_plain_pass(three: list[NetworkResult]) -> None:
    judged = by_name(claims(task_of(), [replace(result, chosen=None, inputs=None) for result in three]))
    assert judged["beats-plain"].verdict == "undecided"
    assert not [name for name in judged if name.startswith("position-input")]


def test_mammography_has_both_readings_of_the_rule() -> None:
    task = task_of("mammography", EFFNET)
    judged = by_name(claims(task, [result_of(seed, EFFNET) for seed in range(3)]))
    assert judged["penultimate-block3-bald-isotonic_penalty"].verdict == "supported"
    assert judged["penultimate-block2-bald-isotonic_penalty"].verdict != "supported"
    assert {"last-bald", "early-bald", "single-block3-variation_predicted", "accuracy"} <= set(judged)
    assert judged["accuracy"].verdict == "contradicted"  # .73 is not the published .872
    assert not [name for name in judged if name.startswith("table-3-fc1")]


def test_a_users_own_network_has_no_published_numbers() -> None:
    layers = ("blocks.1", "blocks.3", "blocks.5", "head")
    judged = by_name(claims(task_of("mine", layers), [result_of(seed, layers) for seed in range(3)]))
    assert "penultimate-head-bald-aurc" in judged
    assert not [name for name in judged if name.startswith(("accuracy", "single", "table-3-bound"))]


def test_an_own_network_is_told_nothing_that_it_cannot_decide() -> None:
    layers = ("blocks.1", "blocks.3", "blocks.5", "head")
    judged = claims(task_of("mine", layers), [result_of(0, layers)])
    assert {claim.name for claim in judged} == {"beats-plain", "position-before-after"}


def test_two_networks_have_an_interval_in_words_and_no_verdict(three: list[NetworkResult]) -> None:
    judged = by_name(claims(task_of(), three[:2]))
    assert not [claim.name for claim in judged.values() if "nan" in claim.ours + claim.how]
    assert "needs 3" in judged["penultimate-fc1-bald-aurc"].how


def test_two_networks_few_images_or_an_untrained_one_decide_nothing(three: list[NetworkResult]) -> None:
    assert {c.verdict for c in claims(task_of(), three[:2]) if not c.arithmetic and "identity" not in c.how} == {
        "undecided"
    }
    few = claims(task_of(n=20), three)
    assert {c.verdict for c in few if not c.arithmetic and "identity" not in c.how} == {"undecided"}
    task = task_of()
    task = replace(task, test=(task.test[0], torch.arange(300) % 10))
    failed = claims(task, [*three[:2], replace(three[2], accuracy=0.1)])
    assert {c.verdict for c in failed if not c.arithmetic and "identity" not in c.how} == {"undecided"}
    assert "seed 2" in by_name(failed)["accuracy"].how


def test_an_untrained_network_is_in_no_line_of_the_answer_but_the_first(three: list[NetworkResult]) -> None:
    task = task_of()
    task = replace(task, test=(task.test[0], torch.arange(300) % 10), untrained=("the head has no weights",))
    study = join_results(task, [*three[:2], replace(three[2], accuracy=0.1)])
    first, last = answer(study, judge(study, tables.effect_table(study)))
    assert "seed 2" in first
    assert "the head has no weights" in first
    assert last.startswith("Evidence")
    assert set(choices(study)["network"]) == {"seed 0", "seed 1"}
    assert tables.identical(study) == []
    assert tables.identical(join_results(task, [three[0], replace(three[0], name="again")])) == ["again"]


def test_another_size_than_the_papers_decides_no_number_and_still_decides_rules(three: list[NetworkResult]) -> None:
    study = join_results(task_of(), three)
    judged = by_name(judge(study, tables.effect_table(study), ["5 passes instead of 100"]))
    assert judged["single-conv1-variation_predicted"].verdict == "undecided"
    assert "size" in judged["single-conv1-variation_predicted"].how
    assert judged["penultimate-fc1-bald-aurc"].verdict == "supported"
    assert judged["table-3-bound"].verdict == "contradicted"


def test_a_hump_is_no_fall() -> None:
    """The slope falls while the ends rise: neither support nor silence about it."""
    results = []
    for seed in range(3):
        result = result_of(seed, rates=(0.1, 0.3, 0.5, 0.9))
        study = join_results(task_of(), [result])
        p_mean = study.every["p_mean"].to_numpy()
        hump = np.where(p_mean < 0.15, 0.01, np.where(p_mean > 0.85, 0.03, 0.5 - 0.4 * p_mean))
        rows = result.rows.assign(rearrangement_penalty=hump * (1 + 0.01 * seed))
        results.append(replace(result, rows=rows))
    judged = by_name(claims(task_of(), results))
    assert "slope per unit of p_mean -" in judged["p_mean-variation_predicted"].ours
    assert judged["p_mean-variation_predicted"].verdict == "contradicted"


def test_bad_results_are_refused(three: list[NetworkResult]) -> None:
    with refused("results") as caught:
        join_results(task_of(), [])
    assert caught.value.received == []
    with refused("results") as caught:
        join_results(task_of(), [three[0], three[0]])
    assert caught.value.received == ["seed 0", "seed 0"]
    with refused("rows") as caught:
        join_results(task_of(), [replace(three[0], rows=three[0].rows.drop(columns="aurc"))])
    assert "'aurc'" in str(caught.value)


# --- tables -----------------------------------------------------------------------------------------------------------


def test_table_three_is_the_mean_over_disjoint_batches(three: list[NetworkResult]) -> None:
    study = join_results(task_of(), three)
    assert curve_pair(study) == PAIR
    table = table_three(study)
    line = table[(table["placement"] == PAIR[1]) & (table["n"] == 128) & (table["score"] == "isotonic_penalty")].iloc[0]
    means = []
    for result in three:
        own = result.curves[(result.curves["placement"] == PAIR[1]) & (result.curves["measure"] == "expected_entropy")]
        u, right = (
            torch.tensor(own["uncertainty"].to_numpy(copy=True)),
            torch.tensor(own["correct"].to_numpy(copy=True)),
        )
        each = [float(scores.isotonic_penalty(u[k : k + 128], right[k : k + 128])) for k in (0, 128)]
        means.append(np.mean(each))
    assert line["batches"] == 2  # the 44 examples left over are not used
    logs = np.log(means)  # a penalty is never negative, and neither is an end of its interval
    assert line["ours"] == pytest.approx(np.exp(logs.mean()))
    ends = np.exp(stats.t.interval(0.95, 2, logs.mean(), stats.sem(logs)))
    assert (line["low"], line["high"]) == pytest.approx(tuple(ends))
    assert line["published"] == 0.030307
    assert line["random"] > line["monotone"] > 0
    printed = table[(table["placement"] == PAIR[0]) & (table["n"] == 300)].set_index("score")["published"]
    assert printed["rearrangement_penalty"] == printed["running_minimum_penalty"] == 0.005607
    assert set(batch_scores(study)["n"]) == {128, 300}


def test_the_paired_bootstrap_is_centred_on_the_difference(three: list[NetworkResult]) -> None:
    """Resampled penalties are too large: an interval of theirs would miss the difference itself."""
    study = join_results(task_of(), three)
    value, low, high = paired_bootstrap(study, 0, "isotonic_penalty")
    sides = []
    for placement in PAIR:
        own = three[0].curves[(three[0].curves["placement"] == placement)]
        own = own[own["measure"] == "expected_entropy"]
        u, right = (
            torch.tensor(own["uncertainty"].to_numpy(copy=True)),
            torch.tensor(own["correct"].to_numpy(copy=True)),
        )
        sides.append((u, right))
    known = [float(scores.isotonic_penalty(*side)) for side in sides]
    drawn = intervals.resamples(300, None, intervals.REPLICATES, 0)
    raw = [intervals.bootstrap_scores(*side, drawn)["isotonic_penalty"] for side in sides]
    assert value == pytest.approx(known[0] - known[1])
    assert low < value < high
    spread = intervals.interval(raw[0] - raw[1])
    assert high - low == pytest.approx(spread[1] - spread[0])
    assert float(raw[1].mean()) > known[1]


def test_accuracies_beside_the_published_one(three: list[NetworkResult]) -> None:
    table = tables.accuracies(join_results(task_of(), three))
    assert table["network"].tolist() == ["seed 0", "seed 1", "seed 2", "mean of networks"]
    known = stats.binomtest(219, 300).proportion_ci(method="wilson")
    assert tables.wilson(0.73, 300) == pytest.approx((known.low, known.high))
    assert table["published"].tolist() == [0.7267] * 4


def test_best_placements_beside_one_plain_pass(three: list[NetworkResult]) -> None:
    table = tables.best_placements(join_results(task_of(), three))
    best = table[(table["measure"] == "bald") & (table["least"] == "AURC ↓")].iloc[0]
    every = pd.concat([result.rows for result in three])
    means = every[(every["measure"] == "bald") & every["equivalent_to"].isna()].groupby("placement")["aurc"].mean()
    assert (best["placement"], best["AURC ↓"]) == (means.idxmin(), pytest.approx(means.min()))
    assert best["AURC − plain"] == pytest.approx(means.min() - 0.25)
    assert best["low"] < best["AURC − plain"] < best["high"]
    assert {"none (one plain pass)", "simulated"} <= set(table["placement"])


def test_ties_at_the_least_penalty_are_counted_and_averaged(three: list[NetworkResult]) -> None:
    """Half of the placements share the least penalty: which of them comes first in the rows says nothing."""
    for backwards in (False, True):
        tied = [replace(result, rows=_with_ties(result.rows, backwards)) for result in three]
        claim = by_name(claims(task_of(), tied))["useful-bald"]
        expected = []
        for result in tied:
            own = result.rows[(result.rows["measure"] == "bald") & result.rows["equivalent_to"].isna()]
            expected.append(own[own["isotonic_penalty"] == 0]["aurc"].mean() - own["aurc"].min())
        assert f"isotonic penalty {np.mean(expected):.2g}"[:-1] in claim.ours.partition("least AURC: ")[2]
        assert "placements that share it" in claim.ours
        table = tables.best_placements(join_results(task_of(), tied))
        least = table[(table["measure"] == "bald") & (table["least"].str.contains("isotonic"))]
        assert (least["tied"] > 10).all()


def _with_ties(rows: pd.DataFrame, backwards: bool) -> pd.DataFrame:
    low = rows["isotonic_penalty"] <= rows.groupby("measure")["isotonic_penalty"].transform("median")
    rows = rows.assign(isotonic_penalty=rows["isotonic_penalty"].where(~low, 0.0))
    return rows.iloc[::-1].reset_index(drop=True) if backwards else rows


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_figure_and_table_of_two_tasks(tmp_path: Path, three: list[NetworkResult], judged: list[Claim]) -> None:
    beside = task_of("mammography", EFFNET), [result_of(seed, EFFNET, rates=(0.3, 0.7)) for seed in range(2)]
    (tmp_path / "not-made.md").write_text("of an earlier, smaller run")
    assert write_tables_and_figures(tmp_path, join_results(task_of(), three), join_results(*beside))[0] == judged
    for name in FIGURES:
        height, width, _ = plt.imread(tmp_path / "figures" / f"{name}.png").shape
        assert height > 400
        assert width > 800
        assert (tmp_path / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    assert not (tmp_path / "not-made.md").exists()
    names = {path.stem for path in (tmp_path / "tables").iterdir()}
    assert {"accuracies", "table-3", "best-placements", "chosen", "single-layers", "effects", "by-p-mean"} <= names
    effects = pd.read_csv(tmp_path / "tables" / "effects.csv")
    assert {"value", "low", "high", "p", "p_holm", "descriptive_p"} <= set(effects.columns)
    assert plt.get_fignums() == []


@pytest.mark.slow
def test_a_tiny_grid_of_one_network(tmp_path: Path) -> None:
    """One rate, no per-example values, no inputs, no choice: what can be made is made, the rest is named."""
    full = result_of(0, rates=(0.5,), n=40)
    rows = full.rows[full.rows["equivalent_to"].isna() & ~full.rows["placement"].str.contains(",")]
    result = replace(full, rows=rows, curves=full.curves.iloc[:0], inputs=None, chosen=None)
    judged, _ = write_tables_and_figures(tmp_path, join_results(task_of(n=40), [result]))
    assert {claim.verdict for claim in judged} <= {"undecided", "contradicted"}
    made = {path.stem for path in (tmp_path / "figures").glob("*.png")}
    told = (tmp_path / "not-made.md").read_text()
    for name in FIGURES:
        assert (name in made) != (name in told), name
    assert {"figure-1-curves", "figure-10-skewness"}.isdisjoint(made)
    assert "undefined for one layer" in told


def test_rows_of_other_measures_draw_what_they_can(tmp_path: Path, three: list[NetworkResult]) -> None:
    few = replace(three[0], rows=three[0].rows[three[0].rows["measure"] == "bald"], inputs=None)
    missing = write_figures(tmp_path, [join_results(task_of(), [few])])
    assert "no rows of predictive_entropy" in missing["figure-8-position"]
    assert (tmp_path / "figures" / "figure-3-first-layer.png").exists()


def test_positions_are_compared_over_the_rates_that_all_of_them_have() -> None:
    one = result_of(0)
    assert one.inputs is not None
    few = one.inputs[~one.inputs["placement"].str.contains("0.1")]
    study = join_results(task_of(), [replace(one, inputs=few)])
    figure = figure_8([study])
    assert not isinstance(figure, str)
    lines = {line.get_label(): line.get_xdata() for line in figure.axes[0].get_lines()}
    assert min(lines["after the activation"]) == min(lines["on the layers' inputs"]) == 0.5
    none = join_results(task_of(), [replace(one, inputs=result_of(0, rates=(0.3,)).inputs)])
    figure = figure_8([none])
    assert not isinstance(figure, str)
    assert "no rates in common" in figure.axes[0].get_title()


def test_figures_of_penalties_show_both_and_the_level_of_a_useless_measure(three: list[NetworkResult]) -> None:
    studies = [join_results(task_of(), three, 5)]
    for name in ("figure-3-first-layer", "figure-7-p-mean", "figure-9-number-of-layers", "figure-12-last-layer"):
        figure = FIGURES[name][0](studies)
        assert not isinstance(figure, str)
        words = [text.get_text() for text in figure.legends[0].get_texts()]
        words += [axes.get_ylabel() for axes in figure.axes]
        for expected in ("isotonic", "rearrangement", "useless measure", "5 to 95 %"):
            assert any(expected in word for word in words), (name, expected)
