"""The report from simulated rows: numbers against independent computations, then what may be missing."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.metrics import log_loss

from dropscope import scores
from dropscope.report.claims import Claim
from dropscope.studies.transformer_profile import calibration, cells, claims, comparisons, levels, published, tables
from dropscope.studies.transformer_profile.recommendations import Recommendation, recommend
from dropscope.studies.transformer_profile.report import report_rows
from dropscope.studies.transformer_profile.rows import Evaluations, read_rows
from dropscope.studies.transformer_profile.rules import RULES
from dropscope.studies.transformer_profile.tables import Findings, analyse
from support.errors import refused
from support.judged_claims import check_claims
from support.profile_tables import NINETEEN, simulate

EIGHT = tuple(NINETEEN[at] for at in (0, 1, 5, 7, 8, 13, 14, 18))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(tmp_path_factory.mktemp("profile"), EIGHT, contexts=30, passes=40, skipped=["nobody/nothing"])


@pytest.fixture(scope="module")
def f(folder: Path) -> Findings:
    return analyse(read_rows(folder), replicates=400)


def only(table: pd.DataFrame, **where: object) -> pd.Series:
    for column, value in where.items():
        table = table[table[column] == value]
    assert len(table) == 1
    return table.iloc[0]


def edited(e: Evaluations, model: str, configuration: str, **columns: object) -> Evaluations:
    """The evaluation with columns of one configuration's items replaced, and its passes made to agree."""
    items, passes = e.items.copy(), e.passes.copy()
    chosen = (items.model == model) & (items.configuration == configuration)
    for name, value in columns.items():
        items.loc[chosen, name] = value
    for group in e.all_groups:
        part = items[chosen] if group == "overall" else items[chosen & (items["group"] == group)]
        at = (passes.model == model) & (passes.configuration == configuration) & (passes["group"] == group)
        passes.loc[at, "accuracy"] = part.frequency.mean()
    return replace(e, items=items, passes=passes)


class TestLevels:
    def test_run_level_accuracy_is_the_score_of_the_same_name(self, folder: Path, f: Findings) -> None:
        passes = pd.read_parquet(folder / "passes.parquet").groupby(["model", "configuration", "group"]).accuracy
        found = f.levels.set_index(["model", "configuration", "group"])
        assert len(found) == 8 * 5 * 3
        for key, values in passes:
            assert found.accuracy[key] == pytest.approx(values.mean())
            assert found["std"][key] == pytest.approx(values.std(ddof=1))
        items = f.e.outcomes("gpt2", "baseline")
        counts = torch.tensor(np.round(f.e.accuracies("gpt2", "baseline") * len(items))).long().unsqueeze(-1)
        level = scores.run_level_accuracy_of_counts(counts, torch.tensor([len(items)]))
        assert found["std"]["gpt2", "baseline", "overall"] == pytest.approx(float(level.std))

    def test_accuracy_of_averaged_probabilities(self, f: Findings) -> None:
        items = f.e.outcomes("gpt2", "high_both", "memory")
        right = np.stack(list(items.probability)).argmax(1) == items.label
        row = only(f.levels, model="gpt2", configuration="high_both", group="memory")
        assert row.averaged == pytest.approx(right.mean())

    def test_deterministic_has_std_exactly_zero(self, f: Findings) -> None:
        assert (f.levels[f.levels.configuration == "deterministic"]["std"] == 0).all()

    def test_chance_is_the_most_frequent_label_and_is_flagged_where_the_interval_holds_it(self, f: Findings) -> None:
        rows = f.levels.itertuples(index=False)
        assert all(row.chance == 0.5 for row in f.levels.itertuples(index=False))
        assert all((row.floor == "at chance") == (row.low <= 0.5 <= row.high) for row in rows)
        assert (levels.pick(f.levels, "deterministic", "memory", "floor") == "").all()
        assert (levels.pick(f.levels, "high_both", "reasoning", "floor") == "at chance").any()

    def test_chance_of_unbalanced_classes(self) -> None:
        items = pd.DataFrame({"label": [0, 0, 0, 1], "probability": [[0.2] * 5] * 4})
        assert levels.chance_of(items) == (0.75, 0.2)

    def test_independent_flips_explain_the_std_of_masks_per_example(self, f: Findings) -> None:
        ratio = (f.stability["std"] / f.stability.independent_std).mean()
        assert ratio == pytest.approx(1, abs=0.15)
        assert list(f.stability["std"]) == sorted(f.stability["std"])

    def test_passes_and_items_that_disagree(self, f: Findings) -> None:
        wrong = replace(f.e, passes=f.e.passes.assign(accuracy=0.5))
        with refused("passes") as caught:
            levels.run_levels(wrong)
        assert "0.500000 over passes" in caught.value.received


class TestConsistency:
    def test_four_of_five_published_rows_break_it(self, f: Findings) -> None:
        theirs = f.consistency[f.consistency.source == "published"].set_index("model").consistent
        assert list(theirs.index[theirs]) == ["scibert_scivocab_uncased"]
        assert len(theirs) == 5

    def test_no_row_of_ours_breaks_it(self, f: Findings) -> None:
        ours = f.consistency[f.consistency.source == "here"]
        assert len(ours) == 40
        assert ours.consistent.all()

    def test_bound_is_reached_by_groups_that_move_against_each_other(self) -> None:
        first, second = np.array([0.1, 0.2, 0.3]), np.array([0.6, 0.4, 0.2])
        whole = 0.25 * first + 0.75 * second
        stds = {"a": first.std(ddof=1), "b": second.std(ddof=1)}
        assert levels.least_overall_std(stds, {"a": 0.25, "b": 0.75}) == pytest.approx(whole.std(ddof=1))


class TestWithinModels:
    def test_t_is_scipys_over_contexts(self, f: Findings) -> None:
        plain = f.e.outcomes("gpt2", "deterministic", "memory")
        noisy = f.e.outcomes("gpt2", "high_ffn", "memory")
        difference = (noisy.frequency - plain.correct.to_numpy(float)).groupby(noisy.context).mean()
        row = only(f.within, model="gpt2", configuration="high_ffn", group="memory")
        assert row.difference == pytest.approx(difference.mean())
        assert row.p_t == pytest.approx(stats.ttest_1samp(difference, 0).pvalue)
        assert row.contexts == 30

    def test_family_is_every_model_configuration_and_group(self, f: Findings) -> None:
        assert len(f.within) == 8 * 4 * 3
        smallest = f.within.p_t.min()
        assert f.within.p_t_holm.min() == pytest.approx(len(f.within) * smallest)
        both = (f.within.p_t < 0.05 / 15) & (f.within.p_bootstrap < 0.05 / 15)
        assert (f.within.beyond_05_15 == both).all()
        assert f.within[f.within.configuration == "high_both"].query("group == 'memory'").beyond_holm.all()

    def test_known_effect(self, f: Findings) -> None:
        """All right without dropout, right in four passes of five with it, by items that differ."""
        e = edited(f.e, "gpt2", "deterministic", correct=True, frequency=1.0)
        count = len(e.outcomes("gpt2", "baseline"))
        e = edited(e, "gpt2", "baseline", frequency=np.resize([0.7, 0.9, 0.8, 0.8], count))
        row = only(comparisons.within_models(e), model="gpt2", configuration="baseline", group="overall")
        assert row.difference == pytest.approx(-0.2)
        assert row.low < -0.2 < row.high < -0.15
        assert row.beyond_holm
        assert row.d_over_items == pytest.approx(-0.2 / np.resize([0.7, 0.9, 0.8, 0.8], count).std(ddof=1), rel=1e-6)

    def test_no_effect_is_no_finding(self, f: Findings) -> None:
        items = f.e.items[f.e.items.model == "gpt2"].copy()
        plain = items[items.configuration == "deterministic"].set_index("item").correct
        items["frequency"] = items.item.map(plain).astype(float)
        e = replace(f.e, items=items, models=f.e.models[f.e.models.model == "gpt2"])
        found = comparisons.within_models(e)
        assert len(found) == 12
        assert (found[["difference", "d_over_items"]] == 0).all(axis=None)
        assert (found[["p_t", "p_bootstrap"]] == 1).all(axis=None)
        assert not found[["beyond_05_15", "beyond_holm"]].any(axis=None)

    def test_d_over_passes_is_cohens_against_a_constant(self, f: Findings) -> None:
        passes = f.e.accuracies("gpt2", "baseline", "memory")
        plain = f.e.accuracies("gpt2", "deterministic", "memory")[0]
        row = only(f.within, model="gpt2", configuration="baseline", group="memory")
        assert row.d_over_passes == pytest.approx((passes.mean() - plain) / (passes.std(ddof=1) / math.sqrt(2)))

    def test_attention_or_ffn(self, f: Findings) -> None:
        row = only(f.attention_or_ffn, model="gpt2", group="memory")
        accuracy = {c: levels.pick(f.levels, c, "memory")["gpt2"] for c in ("high_attention", "high_ffn")}
        assert row.difference == pytest.approx(accuracy["high_attention"] - accuracy["high_ffn"])
        assert row.p_t_holm >= row.p_t
        found = set(f.attention_or_ffn.hurts_more)
        assert "FFN" in found  # the simulation takes more of the logits there
        assert "attention" not in found


class TestBetweenModels:
    def test_quartiles_are_by_std_and_compare_accuracy(self, f: Findings) -> None:
        assert list(f.quartiles["group"]) == ["overall", "memory", "reasoning"]
        accuracy = levels.pick(f.levels, "baseline", "memory")
        steady, unsteady = (accuracy[list(names)] for names in (f.stability.model[:2], f.stability.model[-2:]))
        row = only(f.quartiles, group="memory")
        assert row.difference == pytest.approx(steady.mean() - unsteady.mean())
        reference = stats.permutation_test(
            (steady, unsteady), lambda a, b: abs(np.mean(a) - np.mean(b)), alternative="greater", n_resamples=np.inf
        )
        assert row.p == pytest.approx(reference.pvalue)

    def test_nineteen_models_have_quarters_of_five(self, f: Findings) -> None:
        names = [f"m{at}" for at in range(19)]
        steady = pd.DataFrame({"model": names, "std": np.arange(19) / 1000})
        run = pd.DataFrame({"model": names, "configuration": "baseline", "accuracy": np.arange(19.0)})
        run = pd.concat([run.assign(group=group) for group in f.e.all_groups])
        found = comparisons.quartiles(f.e, run, steady)
        assert set(found.models) == {"5 against 5"}
        assert found.p.tolist() == pytest.approx([2 / 252] * 3)
        assert found.beyond_05_3.all()

    def test_three_readings_of_the_drop(self, f: Findings) -> None:
        mean = f.levels.groupby(["configuration", "group"]).accuracy.mean()
        noisy = mean.drop("deterministic").groupby("group").mean()
        for group in ("memory", "reasoning"):
            expected = [
                mean["deterministic", group] - mean["high_both", group],
                mean["baseline", group] - mean["high_both", group],
                mean["deterministic", group] - noisy[group],
            ]
            assert f.drops[f.drops["group"] == group]["drop"].tolist() == pytest.approx(expected)
        assert published.DROPS["baseline to high_both", "memory"] == pytest.approx(
            published.TABLE_6["baseline"][0] - published.TABLE_6["high_both"][0]
        )

    def test_published_third_reading_is_from_no_two_rows(self) -> None:
        memory = [row[0] for row in published.TABLE_6.values()]
        assert not any(abs(a - b - 0.087) < 0.002 for a in memory for b in memory)

    def test_kinds_are_means_over_models(self, f: Findings) -> None:
        row = only(f.kinds, kind="decoder", what="gap")
        gap = levels.pick(f.levels, "baseline", "memory") - levels.pick(f.levels, "baseline", "reasoning")
        assert row["mean"] == pytest.approx(gap[["gpt2", "EleutherAI/gpt-neo-125m"]].mean())
        assert row.published == 0.344

    def test_family_predicts_what_is_set_by_family(self) -> None:
        draw = np.random.default_rng(0)
        base = pd.DataFrame({
            "model": list("abcdefgh"), "family": list("wwxxyyzz"), "parameters": 10 ** draw.uniform(6, 9, 8),
        })  # fmt: skip
        by_family = base.assign(std=[0.01, 0.011, 0.05, 0.051, 0.02, 0.021, 0.09, 0.091])
        by_size = base.assign(std=np.log(base.parameters) / 100)
        assert comparisons.family_or_size(by_family).difference.mean() > 0
        assert comparisons.family_or_size(by_size).by_size.tolist() == pytest.approx(by_size["std"].tolist())
        assert comparisons.family_or_size(by_family.head(3)).empty
        ratio = comparisons.family_estimate(comparisons.family_or_size(by_family))
        assert ratio.high < 1
        assert ratio.n == 4
        assert math.isnan(comparisons.family_estimate(comparisons.family_or_size(by_family.head(4))).low)

    def test_a_ratio_to_nothing_is_not_printed(self, f: Findings) -> None:
        drops = f.drops.assign(drop=np.where(f.drops["group"] == "reasoning", 1e-17, 0.2))
        assert "×" not in claims._readings(replace(f, drops=drops))
        assert "= 4.0×" in claims._readings(replace(f, drops=drops.assign(drop=drops["drop"].clip(lower=0.05))))

    def test_size_and_specialisation_are_the_papers(self) -> None:
        special = {c.name for c in published.CHECKPOINTS if c.specialised}
        assert special == {"deepset/roberta-base-squad2", "allenai/scibert_scivocab_uncased"}
        assert "deberta-v3-base" in published.CALLED_LARGE


class TestTables:
    def test_table_4_has_ours_best_first_and_the_published_beside(self, f: Findings) -> None:
        table = tables.table_4(f.e, f.levels)
        ours = table[table.overall.notna()]
        assert len(ours) == 8
        assert ours.overall.is_monotonic_decreasing
        row = only(table, model="deberta-v3-small")
        assert (row.published_overall, row.published_reasoning_std) == (0.796, 0.0527)
        assert row.gap == pytest.approx(row.memory - row.reasoning)
        assert set(published.TABLE_4) <= set(table.model)
        assert only(table, model="gpt2-medium")[["overall", "memory"]].isna().all()

    def test_table_5_orders_by_drop(self, f: Findings) -> None:
        table = tables.table_5(f.e, f.levels, f.within)
        ours = table[table["drop"].notna()]
        assert ours["drop"].is_monotonic_decreasing
        assert ours["drop"].tolist() == pytest.approx((ours.deterministic - ours.mc).tolist())
        assert only(table, model="albert-base-v2").published_deterministic_std == 0.0129
        assert [f.e.short_names[m] for m in tables.most_degraded(f.e, f.levels)] == ours.model.tolist()[:5]

    def test_table_6_is_the_mean_over_models(self, f: Findings) -> None:
        table = tables.table_6(f.e, f.levels).set_index("configuration")
        assert list(table.index) == list(published.TABLE_6)
        expected = f.levels[f.levels["group"] == "memory"].groupby("configuration").accuracy.mean()
        assert table.memory.to_dict() == pytest.approx(expected.to_dict())
        assert table.gap.to_dict() == pytest.approx((table.memory - table.reasoning).to_dict())
        assert table.published_gap.tolist() == [0.296, 0.301, 0.110, 0.044, 0.036]


class TestCalibration:
    def test_scores_are_those_of_the_library(self, f: Findings) -> None:
        items = f.e.outcomes("gpt2", "baseline", "reasoning")
        p = np.stack(list(items.probability))
        row = only(f.calibration, model="gpt2", configuration="baseline", group="reasoning")
        assert row.nll == pytest.approx(log_loss(items.label, p, labels=[0, 1]))
        assert row.brier == pytest.approx(2 * ((p[:, 1] - items.label) ** 2).mean())
        entropy = torch.tensor(items.predictive_entropy.to_numpy(copy=True))
        right = torch.tensor(items.correct.to_numpy(copy=True))
        assert row.aurc == pytest.approx(float(scores.aurc(entropy, right)))

    def test_intervals_hold_the_value_and_are_as_wide_as_theory_says(self, f: Findings) -> None:
        items = f.e.outcomes("gpt2", "baseline")
        loss = -np.log([p[label] for p, label in zip(items.probability, items.label, strict=True)])
        by_context = pd.Series(loss).groupby(items.context.to_numpy()).mean()
        row = only(f.calibration, model="gpt2", configuration="baseline", group="overall")
        half = 1.96 * by_context.std() / math.sqrt(len(by_context))
        assert row.nll_low < row.nll < row.nll_high
        assert (row.nll_high - row.nll_low) / 2 == pytest.approx(half, rel=0.15)

    def test_a_difference_to_itself_is_exactly_nothing(self, f: Findings) -> None:
        replicated = calibration.replicate(f.e, replicates=20)
        one = replicated["gpt2", "deterministic", "overall"]
        for name in ("ece", "brier", "nll", "aurc", "accuracy", "aurc_plain_labels"):
            assert float(calibration.paired_difference(one, one, name).abs().max()) == 0

    def test_contexts_of_unequal_size(self, f: Findings) -> None:
        items = f.e.items[f.e.items.model == "gpt2"].copy()
        items["context"] = items.item.str.len()  # three contexts of different sizes
        e = replace(f.e, items=items, models=f.e.models[f.e.models.model == "gpt2"])
        one = calibration.replicate(e, replicates=30)["gpt2", "baseline", "overall"]
        assert all(bool(torch.isfinite(one.replicates[name]).all()) for name in ("ece", "nll", "aurc"))
        again = calibration.replicate(e, replicates=30)["gpt2", "baseline", "overall"]
        assert torch.equal(one.replicates["nll"], again.replicates["nll"])


class TestRecommendations:
    def made(self, e: Evaluations, group: str = "overall") -> Recommendation:
        run = levels.run_levels(e)
        found = recommend(e, run, calibration.replicate(e, replicates=400))
        return next(one for one in found if one.model == "gpt2" and one.group == group)

    @pytest.fixture
    def alone(self, tmp_path: Path) -> Evaluations:
        return read_rows(
            simulate(tmp_path, [NINETEEN[14]], contexts=40, passes=20, skill={"memory": 2.0, "reasoning": 1.5})
        )

    def overconfident(self, e: Evaluations) -> Evaluations:
        """A plain pass that is always nearly certain: the averaged passes, of the same accuracy, are far better."""
        items = e.items.copy()
        noisy = items[items.configuration == "baseline"].set_index("item")
        plain = items.configuration == "deterministic"
        for column in ("prediction", "correct"):
            items.loc[plain, column] = items[plain].item.map(noisy[column]).astype(items[column].dtype)
        items.loc[plain, "frequency"] = items[plain].correct.astype(float)
        sure = [np.eye(2)[k] * 0.9998 + 0.0001 for k in items[plain].prediction]
        items.loc[plain, "probability"] = pd.Series(sure, index=items.index[plain])
        passes = e.passes.copy()
        for group in e.all_groups:
            part = items[plain] if group == "overall" else items[plain & (items["group"] == group)]
            at = (passes.configuration == "deterministic") & (passes["group"] == group)
            passes.loc[at, "accuracy"] = part.frequency.mean()
        return replace(e, items=items, passes=passes)

    def test_dropout_that_improves_the_probabilities_is_recommended(self, alone: Evaluations) -> None:
        one = self.made(self.overconfident(alone))
        assert one.choice != "deterministic"
        assert one.nll.high < 0
        assert one.accuracy.high >= 0
        assert "NLL lower" in one.reason

    def test_never_against_its_audit(self, alone: Evaluations) -> None:
        e = self.overconfident(alone)
        e = replace(e, configurations=e.configurations.assign(audit_ok=False))
        one = self.made(e)
        assert one.choice == "deterministic"
        assert "the audit failed" in one.reason

    def test_dropout_that_only_harms_is_not(self, tmp_path: Path) -> None:
        e = read_rows(simulate(tmp_path, [NINETEEN[14]], harm=2.0, contexts=40, passes=20, skill={"memory": 3.0}))
        one = self.made(e)
        assert one.choice == "deterministic"

    def test_few_contexts_recommend_nothing(self, tmp_path: Path) -> None:
        e = read_rows(
            simulate(tmp_path, [NINETEEN[14]], contexts=14, passes=20, skill={"memory": 0.8, "reasoning": 0.8})
        )
        one = self.made(self.overconfident(e))
        assert one.nll.high < 0
        assert one.choice == "deterministic"
        assert "28 contexts are too few" in one.reason

    def test_a_model_at_chance_gets_no_dropout(self, tmp_path: Path) -> None:
        e = read_rows(
            simulate(tmp_path, [NINETEEN[14]], contexts=40, passes=20, skill={"memory": 0.0, "reasoning": 0.0})
        )
        one = self.made(self.overconfident(e))
        assert one.choice == "deterministic"
        assert "not above chance with or without" in one.reason

    def test_a_configuration_at_chance_is_not_recommended(self, alone: Evaluations) -> None:
        e = self.overconfident(alone)
        run = levels.run_levels(e)
        noisy = run.configuration != "deterministic"
        run.loc[noisy, "floor"] = "at chance"
        made = recommend(e, run, calibration.replicate(e, replicates=400))
        one = next(one for one in made if one.group == "overall")
        assert one.nll.high < 0
        assert one.choice == "deterministic"
        assert one.reason.startswith("not above chance with dropout")


class TestClaims:
    def test_verdicts_follow_from_their_evidence_and_claims_are_registered(self, f: Findings) -> None:
        check_claims(claims.judge_claims(f), RULES)

    def test_verdicts_that_the_simulation_sets(self, f: Findings) -> None:
        verdict = {claim.name: claim.verdict for claim in claims.judge_claims(f)}
        assert verdict["memory_bias"] == "supported"
        for name in ("consistent_stds", "gpt_neo_steady", "albert_deterministic"):
            assert verdict[name] == "contradicted"
        assert verdict["collapse"] == "undecided"  # that some fall is not refuted by models that do not

    def test_memory_is_fragile_where_both_tasks_can_fall(self, tmp_path: Path) -> None:
        e = read_rows(simulate(tmp_path, EIGHT[:5], contexts=40, passes=10, skill={"memory": 3.0, "reasoning": 1.0}))
        verdict = {claim.name: claim.verdict for claim in claims.judge_claims(analyse(e, replicates=50))}
        assert verdict["memory_fragile"] == "supported"
        assert verdict["reasoning_robust"] == "contradicted"

    def test_reasoning_at_chance_decides_nothing_about_its_robustness(self, tmp_path: Path) -> None:
        e = read_rows(
            simulate(tmp_path, EIGHT[:4], contexts=20, passes=10, skill={"memory": 3.0, "reasoning": 0.0}, seed=3)
        )
        judged = {claim.name: claim for claim in claims.judge_claims(analyse(e, replicates=50))}
        assert judged["reasoning_robust"].verdict == "undecided"
        assert "at chance and have nothing to lose" in judged["reasoning_robust"].ours

    def test_nineteen_models_decide_scale_stability_and_gap(self, tmp_path: Path) -> None:
        e = read_rows(simulate(tmp_path, contexts=30, passes=10, skill={"memory": 3.0, "reasoning": 0.5}))
        judged = {claim.name: claim for claim in claims.judge_claims(analyse(e, replicates=20))}
        assert judged["gap_compression"].verdict == "supported"
        assert judged["robustness_and_scale"].verdict in ("supported", "undecided")
        assert "19 models × 60 contexts" in judged["robustness_and_scale"].how
        assert "no interval" not in judged["steady_and_accurate"].ours

    def test_a_slope_on_scale_is_least_squares_and_needs_sizes_that_differ(self) -> None:
        draw = np.random.default_rng(0)
        size = {f"m{m}": float(m % 4) for m in range(8)}
        rows = [(m, c, 0.03 * x + 0.1 * draw.normal()) for m, x in size.items() for c in range(40)]
        table = pd.DataFrame(rows, columns=["model", "context", "value"])
        found = cells.slope_on(table, size)
        fitted = stats.linregress(table.model.map(size), table.value)
        assert found.value == pytest.approx(fitted.slope)
        assert found.low < fitted.slope < found.high
        assert found.n == 8
        assert math.isnan(cells.slope_on(table, dict.fromkeys(size, 1.0)).low)

    def test_quarters_are_chosen_by_other_contexts_than_they_are_measured_on(self, f: Findings) -> None:
        assert math.isnan(cells.steadiest_minus_least(f.e, "baseline", "overall").low)  # eight models: quarters of two
        nine = replace(f.e, models=pd.concat([f.e.models, f.e.models.iloc[:4].assign(model=list("abcd"))]))
        items = [
            f.e.items[f.e.items.model == old].assign(model=new) for old, new in zip(f.e.names, "abcd", strict=False)
        ]
        found = cells.steadiest_minus_least(replace(nine, items=pd.concat([f.e.items, *items])), "baseline", "overall")
        assert found.low < found.value < found.high

    def test_equal_up_to_rounding_is_a_tie(self) -> None:
        found = claims._counted(pd.Series([0.1 + 0.2 - 0.3, 0.2, -0.1, np.nan]))
        assert found == "1 of 3 networks, 1 tied"

    def test_every_claim_names_its_test_and_has_published_words(self, f: Findings) -> None:
        judged = claims.judge_claims(f)
        assert len({claim.name for claim in judged}) == len(judged) == 18
        assert all(isinstance(claim, Claim) and claim.published and claim.ours and claim.how for claim in judged)
        assert all(claim.estimand for claim in judged)
        assert [claim.name for claim in judged if claim.arithmetic] == ["consistent_stds"]
        assert "8 models × 60 contexts" in judged[0].how

    def test_one_model_decides_no_claim_about_models(self, tmp_path: Path) -> None:
        e = read_rows(simulate(tmp_path, [NINETEEN[13]], contexts=20, passes=10))
        verdicts = {claim.name: claim.verdict for claim in claims.judge_claims(analyse(e, replicates=50))}
        assert verdicts == {"consistent_stds": "contradicted"}


class TestFiles:
    def test_tables_figures_and_words(self, folder: Path) -> None:
        report = report_rows(folder)
        assert len(report.claims) == 18
        for name in ("table_4", "table_5", "table_6", "tests_within_models", "recommendations", "calibration"):
            assert all((folder / "tables" / f"{name}.{ending}").exists() for ending in ("csv", "md", "tex"))
            assert len(report.tables[name]) == len(pd.read_csv(folder / "tables" / f"{name}.csv"))
        for name in ("figure_1_overall", "figure_2_reasoning", "figure_3_memory", "sensitivity_bert-base-uncased"):
            height, width, _ = plt.imread(folder / "figures" / f"{name}.png").shape
            assert width > height > 300
        assert "8 networks" in report.answer[0]
        said = "\n".join(report.paragraphs)
        for words in (
            "nobody/nothing: not to be had", "40 of 40 evaluations passed their audit", "std exactly 0", "Chance floor",
            "4 of the 5 published rows", "Stability quartiles on memory accuracy", "layer 11", "**gpt2**: ",
        ):  # fmt: skip
            assert words in said

    def test_one_model_three_groups_four_classes_and_no_map(self, tmp_path: Path) -> None:
        skill = {"sport": 2.0, "trade": 1.0, "art": 0.0}
        simulate(tmp_path, [NINETEEN[13]], skill=skill, classes=4, contexts=12, passes=6, sensitivity=False)
        report = report_rows(tmp_path)
        assert report.claims == ()  # no verdicts about a paper's models on data of one's own
        assert "one deterministic pass" in report.answer[0]
        assert any("need three" in text for text in report.paragraphs)
        assert sorted(path.name for path in (tmp_path / "figures").glob("*.png")) == [
            "figure_1_overall.png", "figure_2_trade.png", "figure_3_sport.png", "figure_4_art.png",
        ]  # fmt: skip
        table = pd.read_csv(tmp_path / "tables" / "accuracy.csv")
        assert set(table["group"]) == {"overall", *skill}
        assert set(table.chance) == {0.25}
        assert "Stability quartiles" not in "\n".join(report.paragraphs)

    def test_one_group_is_the_whole(self, tmp_path: Path) -> None:
        simulate(tmp_path, EIGHT[:2], skill={"all": 1.0}, contexts=12, passes=6, sensitivity=False)
        report_rows(tmp_path)
        assert set(pd.read_csv(tmp_path / "tables" / "accuracy.csv")["group"]) == {"overall"}
        assert [path.name for path in (tmp_path / "figures").glob("*.png")] == ["figure_1_overall.png"]

    def test_two_names_that_end_alike_stay_apart(self, tmp_path: Path) -> None:
        twins = [("a/net", "bert", "encoder", 10), ("b/net", "bert", "encoder", 10)]
        e = read_rows(simulate(tmp_path, twins, contexts=5, passes=3))
        assert list(e.short_names.values()) == ["a/net", "b/net"]

    def test_a_noise_that_is_left_on_is_said(self, tmp_path: Path) -> None:
        simulate(tmp_path, EIGHT[:1], contexts=12, passes=6, sensitivity=False)
        at = tmp_path / "passes.parquet"
        passes = pd.read_parquet(at)
        plain = passes.configuration == "deterministic"
        passes.loc[plain, "accuracy"] += np.where(passes[plain]["pass"] % 2, 1e-5, -1e-5)
        passes.to_parquet(at)
        audits = pd.read_parquet(tmp_path / "audits.parquet")
        audits.assign(fired=audits.fired & (audits.site != audits.site.iloc[0])).to_parquet(tmp_path / "audits.parquet")
        said = "\n".join(report_rows(tmp_path).paragraphs)
        assert "NOT deterministic without dropout: bert-base-uncased" in said
        assert "4 of them silent" in said

    def test_no_model_was_evaluated(self, tmp_path: Path) -> None:
        simulate(tmp_path, EIGHT[:1], contexts=5, passes=3)
        models = pd.read_parquet(tmp_path / "models.parquet")
        models.assign(status="skipped", reason="no weights").to_parquet(tmp_path / "models.parquet")
        report = report_rows(tmp_path)
        assert report.claims == ()
        assert report.answer == ("No model was evaluated.",)


class TestWhatCannotBeRead:
    def test_a_folder_without_tables(self, tmp_path: Path) -> None:
        with refused("out") as caught:
            read_rows(tmp_path)
        assert "passes" in caught.value.received

    def test_a_table_without_a_column(self, tmp_path: Path) -> None:
        simulate(tmp_path, EIGHT[:1], contexts=5, passes=3)
        pd.read_parquet(tmp_path / "items.parquet").drop(columns="context").to_parquet(tmp_path / "items.parquet")
        with refused("items.parquet") as caught:
            read_rows(tmp_path)
        assert "context" in caught.value.received

    def test_configurations_on_different_items(self, tmp_path: Path) -> None:
        simulate(tmp_path, EIGHT[:1], contexts=5, passes=3)
        pd.read_parquet(tmp_path / "items.parquet").iloc[:-3].to_parquet(tmp_path / "items.parquet")
        with refused("high_both") as caught:
            read_rows(tmp_path)
        assert "'deterministic'" in caught.value.what
