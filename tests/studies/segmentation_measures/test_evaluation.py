"""Rows of the segmentation study against a direct computation from stored passes, and the tables made of rows."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import average_precision_score

import dropscope as ds
from dropscope.studies.segmentation_measures import tables
from dropscope.studies.segmentation_measures.answers import answer
from dropscope.studies.segmentation_measures.claims import judge_claims
from dropscope.studies.segmentation_measures.evaluation import (
    BASELINES,
    FOUR,
    MEASURES,
    ROUNDS,
    compute_maps,
    evaluate,
    measure_costs,
)
from dropscope.studies.segmentation_measures.networks import UNet
from dropscope.studies.segmentation_measures.preparation import Prepared
from dropscope.studies.segmentation_measures.rows import LABELS, mean_auprc
from dropscope.studies.segmentation_measures.rules import RULES
from support.judged_claims import check_claims
from support.small_volumes import plain_prepared, prepared_phantom

PLACEMENT = "dropout=0.4 noise=gaussian"
CASES = [4, 5, 6]


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    found = prepared_phantom()
    valid = found.valid.clone()
    valid[4, :3] = False  # as padding would be
    return Prepared(found.images, torch.where(valid, found.labels, 0), valid, found.about)


@pytest.fixture(scope="module")
def net() -> UNet:
    torch.manual_seed(0)
    return UNet(5, 3, 0.4, "gaussian", features=(4, 8)).eval()


@pytest.fixture(scope="module")
def rows(net: UNet, prepared: Prepared) -> pd.DataFrame:
    return evaluate(net, prepared, CASES, PLACEMENT, passes=12, seed=1)


def _by_hand(passes: np.ndarray) -> dict[str, np.ndarray]:
    """The paper's four measures of `passes[T, C, voxels]`, voxel by voxel with numpy.histogram."""
    T, classes, voxels = passes.shape
    found = {
        name: np.zeros(voxels)
        for name in ("averaged_variance", "averaged_entropy", "bhattacharyya", "kullback_leibler")
    }
    mean = passes.mean(0)
    for v in range(voxels):
        shares = np.stack([np.histogram(passes[:, c, v], 100, (0, 1))[0] / T for c in range(classes)])
        found["averaged_variance"][v] = passes[:, :, v].var(0).mean()
        found["averaged_entropy"][v] = np.mean([-sum(s * np.log(s) for s in row if s > 0) for row in shares])
        first, second = shares[np.argsort(-mean[:, v])[:2]]
        found["bhattacharyya"][v] = np.sqrt(first * second).sum()
        a, b = (np.where(h > 0, h, 1e-7) for h in (first, second))
        a, b = a / a.sum(), b / b.sum()
        found["kullback_leibler"][v] = -((a * np.log(a / b)).sum() + (b * np.log(b / a)).sum())
    return found


def test_rows_equal_a_direct_computation_from_stored_passes(net: UNet, prepared: Prepared, rows: pd.DataFrame) -> None:
    ids = [prepared.names[i] for i in CASES]
    stored = ds.sample(net, PLACEMENT, prepared.images[CASES], passes=12, seed=1, ids=ids, engine="reference")
    for place, number in enumerate(CASES):
        keep = prepared.valid[number].flatten().numpy()
        label = prepared.labels[number].flatten().numpy()[keep]
        passes = stored[:, place].flatten(2).double().numpy()[..., keep]
        wrong = passes.mean(0).argmax(0) != label
        of_case = rows[rows.case == prepared.names[number]].set_index("measure")
        assert set(of_case.errors) == {int(wrong.sum())}
        assert set(of_case.voxels) == {int(keep.sum())}
        for name, values in _by_hand(passes).items():
            # Sums of the same shares in another order differ in their last bits: what is equal must tie here too.
            expected = average_precision_score(wrong, values.round(9))
            assert of_case.auprc[name] == pytest.approx(expected, abs=1e-5), name
        prediction = passes.mean(0).argmax(0)
        for c in range(3):
            both, one, other = ((prediction == c) & (label == c)).sum(), (prediction == c).sum(), (label == c).sum()
            if one + other:
                assert of_case[f"dice_{c}"].iloc[0] == pytest.approx(2 * both / (one + other))


def test_maps_equal_numpy_histograms_voxel_by_voxel(net: UNet, prepared: Prepared) -> None:
    found = compute_maps(net, prepared, CASES[:1], PLACEMENT, 12, 1, torch.device("cpu"))[0]
    ids = [prepared.names[CASES[0]]]
    stored = ds.sample(net, PLACEMENT, prepared.images[CASES[:1]], passes=12, seed=1, ids=ids, engine="reference")
    passes = stored[:, 0].flatten(2).double().numpy()
    for name, values in _by_hand(passes).items():
        np.testing.assert_allclose(found.values[name].flatten().numpy(), values, atol=1e-5)
    assert torch.equal(found.prediction.flatten(), stored[:, 0].double().mean(0).argmax(0).flatten())


def test_the_uncertainty_of_a_case_is_that_of_its_maps_and_passes(
    net: UNet, prepared: Prepared, rows: pd.DataFrame
) -> None:
    number = CASES[0]
    ids = [prepared.names[number]]
    stored = ds.sample(net, PLACEMENT, prepared.images[[number]], passes=12, seed=1, ids=ids, engine="reference")
    row = rows[(rows.case == ids[0]) & (rows.measure == "averaged_variance")].iloc[0]
    values = ds.measures.averaged_variance(stored)[0]
    inside = (stored.mean(0)[0].argmax(0) > 0) & prepared.valid[number]
    assert row.foreground_mean == pytest.approx(float(values[inside].mean()), rel=1e-4)
    labels = torch.where(prepared.valid[number], stored[:, 0].argmax(1), -1)
    sizes = torch.stack([(labels == c).flatten(1).sum(1) for c in (1, 2)]).double()
    expected = (sizes.std(1, correction=0) / sizes.mean(1)).nanmean()
    assert row.volume_variation == pytest.approx(float(expected))
    overlaps = []
    for c in (1, 2):
        members = [(labels == c)[t] for t in range(12)]
        pairs = [(a, b) for i, a in enumerate(members) for b in members[i + 1 :]]
        shared, both = (
            sum(int(f(a, b)) for a, b in pairs)
            for f in (lambda a, b: 2 * (a & b).sum(), lambda a, b: a.sum() + b.sum())
        )
        overlaps.append(shared / both if both else np.nan)
    assert row.pairwise_disagreement == pytest.approx(1 - np.nanmean(overlaps))


def test_rows_do_not_depend_on_the_other_cases(net: UNet, prepared: Prepared, rows: pd.DataFrame) -> None:
    alone = evaluate(net, prepared, CASES[1:2], PLACEMENT, passes=12, seed=1)
    together = rows[rows.case == prepared.names[CASES[1]]].reset_index(drop=True)
    parts = [column for column in alone if column.startswith("auprc_")]  # of few voxels, whose last bits decide ties
    pd.testing.assert_frame_equal(alone.drop(columns=parts), together.drop(columns=parts))
    pd.testing.assert_frame_equal(alone[parts], together[parts], rtol=1e-3)


def test_every_measure_and_baseline_has_a_row_per_case(rows: pd.DataFrame) -> None:
    names = [row.name for row in MEASURES] + list(BASELINES)
    assert rows.measure.tolist() == names * len(CASES)
    assert {"kullback_leibler_1e-10", "kullback_leibler_1e-3", "averaged_std"} < set(names)
    assert set(names) == set(LABELS)
    assert set(rows.centre) == {"centre A", "centre B", "centre C"}


def test_an_image_without_errors_has_no_auprc() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv3d(1, 2, 1), torch.nn.Dropout3d(0.5))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([-1.0, 1.0]).reshape(2, 1, 1, 1, 1))
        net[0].bias.zero_()
    images = torch.randn(2, 1, 4, 4, 3).sign() * 3
    label = (images[:, 0] > 0).long()
    label[1, 0, 0, 0] = 1 - label[1, 0, 0, 0]
    found = evaluate(net, plain_prepared(images, label), [0, 1], "dropout=0.2", passes=30)
    of = found[found.measure == "averaged_variance"].set_index("case")
    assert (of.errors["case 0"], of.errors["case 1"]) == (0, 1)
    assert np.isnan(of.auprc["case 0"])
    assert of.auprc["case 1"] > 0


def test_costs_are_of_each_measure_and_of_the_passes(net: UNet, prepared: Prepared) -> None:
    found = measure_costs(net, prepared, 4, PLACEMENT, 3, 0, torch.device("cpu"))
    assert set(found) == {"forward", *(row.name for row in MEASURES)}
    assert all(min(rounds) > 0 for rounds in found.values())
    assert {len(rounds) for name, rounds in found.items() if name != "forward"} == {ROUNDS}


# --- tables and claims ------------------------------------------------------------------------------------------------


def made_rows(
    order: tuple[float, ...] = (0.6, 0.6, 0.4, 0.2), experiments: int = 24, seed: int = 0, cases: int = 12
) -> pd.DataFrame:
    """Rows of `experiments` × `cases` cases in which the four measures have these mean AUC-PR, with some spread."""
    draw = np.random.default_rng(seed)
    level = dict(zip(FOUR, order, strict=True))
    rows = []
    for e, case in product(range(experiments), range(cases)):
        base = {"experiment": f"e{e}", "n_train": 5 * (1 + e % 3), "rate": 0.1 + 0.2 * (e % 2), "noise": "gaussian"}
        base |= {"case": f"c{case}", "patient": f"p{case}", "centre": "AB"[case % 2], "errors": 3, "voxels": 100}
        base |= {"dice_0": 0.99, "dice_1": 0.7 - 0.01 * (case - 5.5), "dice_2": 0.9}
        missing = e == 0 and case == 0
        for name in LABELS:
            value = np.nan if missing else level.get(name, 0.5) + draw.normal(0, 0.05)
            row = base | {"measure": name, "auprc": value, "errors": 0 if missing else 3}
            # One map's mean follows the loss exactly, every other uncertainty of a case turns it round.
            follows = name == "averaged_variance"
            row |= {"foreground_mean": 0.1 * case if follows else -0.1 * case, "worst_patch": -case}
            rows.append(row | {"volume_variation": np.nan if case == 3 else case, "pairwise_disagreement": -case})
    return pd.DataFrame(rows)


def test_means_leave_out_images_without_errors_and_count_them() -> None:
    rows = made_rows()
    values = mean_auprc(rows)
    expected = rows[(rows.experiment == "e0") & (rows.measure == "bhattacharyya")].auprc.dropna()
    assert len(expected) == 11
    assert values.loc["e0", "bhattacharyya"] == pytest.approx(expected.mean())
    table = tables.per_experiment(rows)
    assert table.without_errors.tolist() == [1] + [0] * 23
    assert table.dice_foreground.tolist() == pytest.approx([0.8] * 24)
    assert table.experiment.tolist() == [f"e{i}" for i in range(24)]


def test_per_measure_is_against_one_plain_pass() -> None:
    table = tables.per_measure(made_rows(cases=36), {"averaged_variance": 0.5}).set_index("measure")
    assert table.loc["averaged variance", "difference to one plain pass"] == pytest.approx(0.1, abs=0.02)
    assert table.loc["averaged variance", "low"] > 0 > table.loc["Kullback-Leibler", "high"]
    assert table.loc["entropy of one plain pass", "difference to one plain pass"] == 0
    assert table.loc["averaged variance", "seconds per case ↓"] == 0.5


def test_differences_and_means_weigh_experiments_alike() -> None:
    """Experiments in which most images have no error count as much as the others, in the mean and in the difference."""
    rows = made_rows()
    few = rows.experiment.isin([f"e{i}" for i in range(12)]) & rows.case.isin([f"c{i}" for i in range(2, 12)])
    rows.loc[few, "auprc"] = np.nan
    rows.loc[rows.experiment.isin([f"e{i}" for i in range(12)]) & (rows.measure == FOUR[0]), "auprc"] += 0.3
    table = tables.per_measure(rows, {}).set_index("measure")["mean AUC-PR ↑"]
    found = tables.per_measure(rows, {}).set_index("measure")["difference to one plain pass"]
    for name in found.index:
        assert found[name] == pytest.approx(table[name] - table["entropy of one plain pass"])


def test_uncertainties_of_cases_are_held_against_one_minus_dice() -> None:
    table = tables.per_case(made_rows()).set_index("uncertainty of a case")
    assert len(table) == 5 * 2 + 2
    assert table.loc["averaged variance, foreground mean", "rank correlation ↑"] == pytest.approx(1)
    assert table.loc["averaged variance, worst patch", "rank correlation ↑"] == pytest.approx(-1)
    assert table.loc["volume variation over passes", "rank correlation ↑"] == pytest.approx(1)
    assert table["left out"].to_dict()["volume variation over passes"] == 24
    losses = 1 - (0.7 - 0.01 * (np.arange(12) - 5.5) + 0.9) / 2
    best = np.mean([losses[: k + 1].mean() for k in range(12)])
    assert table.loc["averaged variance, foreground mean", "risk ↓"] == pytest.approx(best)
    assert table.loc["averaged variance, worst patch", "risk ↓"] > best


def test_bootstrap_is_of_all_patients_and_of_each_centre() -> None:
    table = tables.bootstrap(made_rows())
    assert table.groupby("centre").size().to_dict() == {"all": 6, "A": 6, "B": 6}
    assert table.patients.tolist() == [12] * 6 + [6] * 12
    row = table[(table.centre == "all") & (table.better == FOUR[0]) & (table.than == FOUR[3])].iloc[0]
    assert row.difference == pytest.approx(0.4, abs=0.02)
    assert bool(row.significant)


def _claims(order: tuple[float, ...], cases: int = 36) -> dict[str, str]:
    rows = made_rows(order, cases=cases)
    timings = dict.fromkeys(FOUR, (1.0, 1.1, 0.9)) | {"averaged_variance": (0.5, 0.6, 0.5)}
    found = judge_claims(tables.posteriors(rows), tables.pairs(rows), timings)
    check_claims(found, RULES)
    return {claim.name: claim.verdict for claim in found}


def test_claims_hold_where_the_rows_are_made_so() -> None:
    verdicts = _claims((0.6, 0.6, 0.4, 0.2))
    assert verdicts["order"] == verdicts["bhattacharyya > kullback_leibler"] == verdicts["cost"] == "supported"
    assert verdicts["variance = entropy"] == "supported"


def test_the_answer_leaves_out_failures_and_says_what_kullback_leibler_hangs_on() -> None:
    rows = made_rows(cases=36)
    failed = rows.experiment == "e0"
    rows.loc[failed, ["dice_1", "dice_2"]] = 0.01
    rows.loc[failed & (rows.measure == "averaged_entropy"), "auprc"] = 100.0
    experiments, trained = tables.per_experiment(rows), tables.per_measure(rows[~failed], {})
    judged = judge_claims(tables.posteriors(rows[~failed]), tables.pairs(rows[~failed]), {})
    facts = {"own": [], "networks": 24, "passes": 5}
    first, second, third = answer(rows, trained, experiments, judged, facts)
    assert first.startswith("**Take averaged")
    assert "0.6" in second
    assert "reversed at 1e-10" in second  # made to score above Bhattacharyya, as every other measure
    assert "1 failed" in third


def test_claims_do_not_hold_where_the_order_is_another() -> None:
    verdicts = _claims((0.6, 0.5, 0.2, 0.4))
    assert verdicts["averaged_variance > bhattacharyya"] == "supported"
    assert verdicts["bhattacharyya > kullback_leibler"] == verdicts["order"] == "contradicted"
    assert verdicts["variance = entropy"] == "contradicted"


def test_a_difference_within_the_margin_is_equivalence() -> None:
    verdicts = _claims((0.6, 0.6, 0.6, 0.2))
    assert verdicts["averaged_variance > bhattacharyya"] == verdicts["order"] == "equivalent"


def test_few_patients_decide_no_pair() -> None:
    verdicts = _claims((0.6, 0.6, 0.4, 0.2), cases=12)
    assert {verdicts.pop(name) for name in list(verdicts) if name != "cost"} == {"undecided"}


def test_networks_that_failed_are_flagged_and_left_out_beside() -> None:
    rows = made_rows(cases=36)
    failed = rows.experiment.isin(["e3", "e4"])
    rows.loc[failed, ["dice_1", "dice_2"]] = 0.01
    rows.loc[failed & (rows.measure == FOUR[0]), "auprc"] = 0.1
    assert tables.failures(rows) == ["e3", "e4"]
    table = tables.pairs(rows).set_index(["networks", "better", "than"])
    every, trained = (table.loc[(which, FOUR[0], FOUR[3])] for which in ("all", "without failures"))
    assert (every.experiments, trained.experiments) == (24, 22)
    assert trained.difference == pytest.approx(0.4, abs=0.02)
    assert every.difference < trained.difference - 0.03


def test_two_images_of_a_patient_are_one_patient() -> None:
    """Twice the images of as many patients do not narrow the interval by much."""
    rows = made_rows(cases=80, experiments=5)
    shared = rows.case.str[1:].astype(int) // 2
    rows["patient"] = "p" + shared.astype(str)
    effect = np.random.default_rng(0).normal(0, 0.1, 40)[shared]
    rows["auprc"] += np.where(rows.measure == FOUR[0], effect, 0.0)
    half = rows[rows.case.str[1:].astype(int) % 2 == 0]
    widths = [(t := tables.pairs(part).iloc[0]).high - t.low for part in (rows, half)]
    assert widths[0] == pytest.approx(widths[1], rel=0.15)


def test_kullback_leibler_is_repeated_at_other_floors() -> None:
    table = tables.floors(made_rows())
    assert table.floor.tolist() == ["1e-7", "1e-10", "1e-3"]
    assert table["Bhattacharyya wins"].iloc[0] == 24
