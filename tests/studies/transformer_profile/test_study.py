"""The transformer study: every family from folder to tables; the fast passes against the plain loop; bad input."""

from __future__ import annotations

import itertools
import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import dropscope as ds
from dropscope.cli import app
from dropscope.data.batches import PADDING
from dropscope.errors import AuditFailed
from dropscope.injection.families import FIELDS, with_rates
from dropscope.injection.resolution import resolve
from dropscope.injection.sites import examine
from dropscope.loading.huggingface import Checkpoint
from dropscope.model.inputs import Call
from dropscope.placement.placement import Placement
from dropscope.report.summaries import Summary, verdict_table
from dropscope.studies.transformer_profile import fine_tuning, networks, study
from dropscope.studies.transformer_profile.checkpoints import load_network, read_checkpoints
from dropscope.studies.transformer_profile.configurations import CONFIGURATIONS, config_reach, layers_of, placement_of
from dropscope.studies.transformer_profile.evaluation import Bench, accuracies, bench, evaluate
from dropscope.studies.transformer_profile.fine_tuning import Training, Tuning, fine_tune
from dropscope.studies.transformer_profile.items import two_domains
from dropscope.studies.transformer_profile.networks import sensitivity_map
from dropscope.studies.transformer_profile.options import Options, Plan
from dropscope.studies.transformer_profile.presets import PRESETS
from dropscope.studies.transformer_profile.published import CHECKPOINTS
from dropscope.studies.transformer_profile.store import ModelParts
from dropscope.studies.transformer_profile.tokens import Encoded, encode
from support import tiny_checkpoints as tiny
from support import zoo
from support.errors import refused

pytest.importorskip("transformers")

CPU = torch.device("cpu")
SMOKE: dict[str, Any] = {"preset": "smoke", "device": "cpu", "progress": False}
_BASELINE = CONFIGURATIONS[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of every family, and both data files."""
    at = tmp_path_factory.mktemp("study")
    for family in zoo.FAMILIES:
        tiny.checkpoint(at / family, family, tokenizer="end" if family in zoo.DECODERS else "pad")
    tiny.squad(at / "squad.json")
    tiny.hellaswag(at / "hellaswag.jsonl")
    return at


@pytest.fixture
def no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """For studies whose tables matter here: drawing figures takes most of the time of a small one."""
    monkeypatch.setattr(study, "write_report", lambda plan, models: (Summary((), (), verdict_table(())), {}))


def planned(folder: Path, out: Path, *models: str, **options: Any) -> Plan:
    names = [str(folder / model) if (folder / model).is_dir() else model for model in models]
    files = {"squad": folder / "squad.json", "hellaswag": folder / "hellaswag.jsonl"}
    return study.plan(Options(names, **files, **SMOKE, out=out, **options))


def checkpoint_of(path: Path) -> Checkpoint:
    found, missing = read_checkpoints([str(path)])
    assert not missing
    return found[str(path)]


def encoded(folder: Path, family: str, split: str = "test") -> Encoded:
    items = two_domains(folder / "squad.json", folder / "hellaswag.jsonl", 80)
    found, remarks = encode(checkpoint_of(folder / family), items.side(split))
    assert remarks == []
    return found


def ready(folder: Path, family: str, tokens: int | None = None) -> Bench:
    return bench(load_network(checkpoint_of(folder / family), 2, 0), encoded(folder, family), CPU, tokens=tokens)


def placement(on: Bench, mode: str = "config", number: int = 1) -> Placement:
    reached = config_reach(on.model, on.example, on.site_map) if mode == "config" else None
    return placement_of(CONFIGURATIONS[number], mode, reached)


# --- variants, configurations and the surface -------------------------------------------------------------------------


def test_depths_and_seeds_of_one_checkpoint_become_models(folder: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"layers": [1, 2], "seeds": 2, "configurations": [".2/.2", ".6/.1"], "surface": [0.3]}
    found = study.run(planned(folder, tmp_path / "out", "bert", "gpt2", **options))
    models = found.tables["models"]
    assert len(models) == 8
    assert models.counts_as.nunique() == 4
    assert (models.status == "ok").all()
    sizes = models.groupby("counts_as").parameters.first()
    assert sizes[f"{folder / 'bert'} (1 layer)"] < sizes[f"{folder / 'bert'} (2 layers)"]
    assert set(found.tables["passes"].configuration) == {c.name for c in CONFIGURATIONS} | {"rates_0.2_0.2"}
    surface = found.tables["surface"]
    assert len(surface) == 8 * 4 * 3
    plain = surface[(surface.attention_rate == 0) & (surface.ffn_rate == 0)]
    assert (plain.difference == 0).all()
    over = found.tables["surface_over_models"]
    assert set(over.models) == {4}  # seeds are averaged
    assert (found.folder / "figures" / "response_surface.png").exists()
    text = (found.folder / "summary.md").read_text()
    assert "8 networks are trainings of 4 models" in text
    assert "4 models × " in " ".join(claim.how for claim in found.claims)


def test_a_killed_surface_is_taken_up_and_a_grown_one_is_added_to(
    folder: Path, tmp_path: Path, no_reports: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    real = networks.evaluate
    monkeypatch.setattr(
        networks, "evaluate", lambda on, placement, *rest: calls.append(placement) or real(on, placement, *rest)
    )
    study.run(planned(folder, tmp_path / "out", "bert", surface=[0.3]))
    assert len(calls) == 5 + 4
    study.run(planned(folder, tmp_path / "out", "bert", surface=[0.3], configurations=["0.2/0.2"]))
    assert len(calls) == 5 + 4 + 1
    study.run(planned(folder, tmp_path / "out", "bert", surface=[0.3, 0.5], configurations=["0.2/0.2"]))
    assert len(calls) == 5 + 4 + 1 + 5


@pytest.mark.parametrize("family", ["bert", "gpt2", "gpt-neo", "albert", "distilbert", "deberta"])
def test_a_cut_network_runs_and_equals_the_first_layers(folder: Path, family: str) -> None:
    whole = load_network(checkpoint_of(folder / family), 2, 0)
    cut = load_network(checkpoint_of(folder / family), 2, 0, layers=1)
    assert cut.config.num_hidden_layers == 1 < whole.config.num_hidden_layers
    assert all(torch.equal(value, whole.state_dict()[name]) for name, value in cut.state_dict().items())
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        assert cut(input_ids=ids).logits.shape == (1, 2)
    with refused("layers"):
        load_network(checkpoint_of(folder / family), 2, 0, layers=99)


def test_from_scratch_every_seed_has_weights_of_its_own(folder: Path) -> None:
    one, same, other = (load_network(checkpoint_of(folder / "bert"), 2, s, scratch=True) for s in (0, 0, 1))
    stored = load_network(checkpoint_of(folder / "bert"), 2, 0)
    name = "bert.encoder.layer.0.attention.self.query.weight"
    assert torch.equal(one.state_dict()[name], same.state_dict()[name])
    assert not torch.equal(one.state_dict()[name], other.state_dict()[name])
    assert not torch.equal(one.state_dict()[name], stored.state_dict()[name])


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"seeds": 0}, "seeds"), ({"layers": [0]}, "layers"), ({"seeds": 2, "train": "none"}, "seeds"),
        ({"scratch": True, "train": "none"}, "scratch"), ({"configurations": ["0.2"]}, "configurations"),
        ({"configurations": ["0.2/1.0"]}, "configurations"), ({"surface": [1.5]}, "surface"),
        ({"surface": [0.5], "train": "per_configuration"}, "surface"),
    ],
)  # fmt: skip
def test_variants_that_cannot_be(folder: Path, tmp_path: Path, options: dict[str, Any], name: str) -> None:
    with refused(name):
        planned(folder, tmp_path / "out", "bert", **options)


# --- the whole study --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> study.Outcome:
    """All nine families, and one that is not there, in the smoke preset."""
    names = [*zoo.FAMILIES, "./not-there"]
    return study.run(planned(folder, tmp_path_factory.mktemp("out"), *names))


def read(outcome: study.Outcome, name: str) -> pd.DataFrame:
    return pd.read_parquet(outcome.folder / f"{name}.parquet")


def test_nine_families_go_through_and_one_that_is_not_there_is_said(whole: study.Outcome, folder: Path) -> None:
    models = whole.tables["models"].set_index("model")
    assert models.status.tolist() == ["ok"] * 9 + ["skipped"]
    assert "it cannot be loaded" in models.reason["./not-there"]
    assert models.kind[[str(folder / family) for family in zoo.DECODERS]].tolist() == ["decoder", "decoder"]
    assert (models.parameters[:9] > 1000).all()
    assert (models.seconds_training[:9] > 0).all()
    text = (whole.folder / "summary.md").read_text()
    assert "./not-there: it cannot be loaded" in text
    assert f"{folder / 'gpt-neo'}: " in text
    assert whole.claims
    assert "## Recommendations" in text


def test_the_tables_hold_what_was_agreed(whole: study.Outcome) -> None:
    size = PRESETS["smoke"]
    configurations, found, items = (read(whole, name) for name in ("configurations", "passes", "items"))
    assert len(configurations) == 9 * 5
    assert configurations.audit_ok.all()
    assert configurations.placement_digest.map(len).eq(16).all()
    assert len(found) == 9 * 5 * size.passes * 3
    assert set(found.group) == {"overall", "memory", "reasoning"}
    assert len(items) == 9 * 5 * 16
    assert list(items.columns) == [
        "model", "configuration", "item", "context", "group", "label", "prediction", "correct", "frequency",
        "probability", "predictive_entropy", "bald",
    ]  # fmt: skip
    assert items.probability.map(lambda p: abs(sum(p) - 1) < 1e-6).all()
    assert (items.bald <= items.predictive_entropy + 1e-6).all()
    assert (items.correct == (items.prediction == items.label)).all()
    halves = found.pivot_table(index=["model", "configuration", "pass"], columns="group", values="accuracy")
    assert np.allclose(halves.overall, (halves.memory + halves.reasoning) / 2)
    frequency = items.groupby(["model", "configuration"]).frequency.mean()
    assert np.allclose(frequency, found[found.group == "overall"].groupby(["model", "configuration"]).accuracy.mean())


def test_deterministic_is_exactly_that_and_every_other_configuration_varies(whole: study.Outcome) -> None:
    spread = read(whole, "passes").groupby(["model", "configuration", "group"]).accuracy.std()
    assert (spread.xs("deterministic", level="configuration") == 0).all()
    items = read(whole, "items")
    assert (items[items.configuration == "deterministic"].bald == 0).all()
    assert (items[items.configuration != "deterministic"].groupby(["model", "configuration"]).bald.max() > 1e-4).all()


def test_every_evaluation_carries_its_audit(whole: study.Outcome) -> None:
    audits, configurations = read(whole, "audits"), read(whole, "configurations")
    assert audits.fired.all()
    assert ((audits.asked - audits.measured).abs() < 0.12).all()
    counts = audits.groupby(["model", "configuration"]).size()
    noisy = configurations[configurations.configuration != "deterministic"]
    for row in noisy.itertuples():
        assert counts[row.model, row.configuration] == len(Placement.parse(row.placement).terms)
    assert "deterministic" not in set(audits.configuration)


def test_albert_and_gpt_neo_are_handled_and_said(whole: study.Outcome, folder: Path) -> None:
    """ALBERT's head dropout is off in the deterministic configuration; GPT-Neo's fields, all 0, are switched on."""
    remarks = whole.tables["models"].set_index("model").remarks
    assert "keeps its rate 0.1; off in deterministic" in remarks[str(folder / "albert")]
    assert "dropout that is never called" in remarks[str(folder / "albert")]
    assert "every dropout field of the checkpoint is 0" in remarks[str(folder / "gpt-neo")]
    assert "padded with its end token" in remarks[str(folder / "gpt2")]
    asked_rates = read(whole, "audits").query(f"model == '{folder / 'gpt-neo'}' and configuration == 'high_attention'")
    assert sorted(set(asked_rates.asked)) == [0.1, 0.6]


def test_the_sensitivity_map_has_every_layer_component_and_group(whole: study.Outcome) -> None:
    table = read(whole, "sensitivity")
    cells = table.groupby("model").apply(lambda t: set(zip(t.layer, t.component, t.group, strict=True)))
    wanted = {(i, c, g) for i in (0, 1) for c in ("attention", "ffn") for g in ("overall", "memory", "reasoning")}
    assert all(found == wanted for found in cells)
    plain = (
        read(whole, "passes").query("configuration == 'deterministic' and `pass` == 0").set_index(["model", "group"])
    )
    for row in table.itertuples():
        assert row.deterministic_accuracy == plain.accuracy[row.model, row.group]


@pytest.mark.usefixtures("no_reports")
def test_what_is_there_is_not_done_again(whole: study.Outcome, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after some parts, a rerun does what is missing alone and ends with the same numbers."""
    before = {name: read(whole, name) for name in ("passes", "items", "audits", "sensitivity")}
    done: list[str] = []
    gone = next((whole.folder / "parts").glob("*electra*")) / "high_ffn" / "configuration.json"
    gone.unlink()
    monkeypatch.setattr(fine_tuning, "fit", lambda *a, **k: pytest.fail("trained again"))
    monkeypatch.setattr(networks, "evaluate", lambda on, p, *a: (done.append(str(p)), evaluate(on, p, *a))[1])
    again = study.run(planned(folder, whole.folder, *zoo.FAMILIES, "./not-there"))
    assert len(done) == 1
    for name, table in before.items():
        pd.testing.assert_frame_equal(read(again, name), table)
    with refused("out") as caught:
        study.run(planned(folder, whole.folder, "bert", learning_rate=1e-4))
    assert "learning_rate" in caught.value.received


@pytest.mark.usefixtures("no_reports")
@pytest.mark.slow
def test_components_per_configuration_and_masks_per_pass(folder: Path, tmp_path: Path) -> None:
    options = {"rates": "component", "train": "per_configuration", "masks": "per_pass"}
    done = study.run(planned(folder, tmp_path, "bert", "albert", **options))
    configurations = read(done, "configurations").set_index(["model", "configuration"])
    assert configurations.placement[str(folder / "bert"), "high_attention"] == "attention=0.6,ffn=0.1"
    assert set(configurations.masks) == {"per_pass"}
    assert set(configurations.protocol) == {"per_configuration"}
    assert len(list((tmp_path / "weights").glob("*.safetensors"))) == 10
    weights = {path.name.rpartition("-")[2]: path.read_bytes() for path in (tmp_path / "weights").glob("*bert-*")}
    assert len(set(weights.values())) == len(weights) >= 5  # trained under different noise: five different networks


def test_a_network_built_without_dropout_says_nothing_of_its_checkpoint(folder: Path) -> None:
    """Trained for the deterministic configuration, its fields are 0; those of the checkpoint are not."""
    silent = load_network(checkpoint_of(folder / "bert"), 2, 0, {"attention": 0.0, "hidden": 0.0, "head": 0.0}).eval()
    on = bench(silent, ready(folder, "bert").encoded, CPU)
    said = "every dropout field of the checkpoint is 0"
    assert any(said in text for text in config_reach(on.model, on.example, on.site_map).remarks)
    assert not any(said in text for text in config_reach(on.model, on.example, on.site_map, as_it_came=False).remarks)


@pytest.mark.usefixtures("no_reports")
def test_a_checkpoint_of_several_labels_a_text_is_skipped(tmp_path: Path) -> None:
    path = tiny.checkpoint(tmp_path / "mine", "bert", classes=2, problem_type="multi_label_classification")
    rows = [{"text": tiny.sentence(i), "label": i % 2} for i in range(30)]
    pd.DataFrame(rows).to_csv(tmp_path / "own.csv", index=False)
    options = Options([str(path)], data=tmp_path / "own.csv", train="none", out=tmp_path / "out", **SMOKE)
    with refused("train") as caught:
        study.run(study.plan(options))
    assert caught.value.received == "several labels a text"


@pytest.mark.usefixtures("no_reports")
def test_a_labelled_file_of_three_classes_with_groups_of_its_own(folder: Path, tmp_path: Path) -> None:
    rows = [{"text": tiny.sentence(i, 3 + i % 9), "label": "abc"[i % 3], "group": f"g{i % 2}"} for i in range(60)]
    pd.DataFrame(rows).to_csv(tmp_path / "own.csv", index=False)
    options = Options([str(folder / "gpt2")], data=tmp_path / "own.csv", out=tmp_path / "out", **SMOKE)
    done = study.run(study.plan(options))
    assert set(read(done, "passes").group) == {"overall", "g0", "g1"}
    assert read(done, "items").probability.map(len).eq(3).all()


@pytest.mark.usefixtures("no_reports")
def test_a_checkpoint_that_comes_trained_is_not_trained(folder: Path, tmp_path: Path) -> None:
    """Labels by name are numbered as the checkpoint does; one whose classes are others is skipped with the reason."""
    path = tiny.checkpoint(tmp_path / "mine", "bert", classes=3, id2label={0: "c", 1: "a", 2: "b"},
                           label2id={"c": 0, "a": 1, "b": 2})  # fmt: skip
    rows = [{"text": tiny.sentence(i), "label": "abc"[i % 3]} for i in range(30)]
    pd.DataFrame(rows).to_csv(tmp_path / "own.csv", index=False)
    names = [str(path), str(folder / "bert")]
    options = Options(names, data=tmp_path / "own.csv", train="none", out=tmp_path / "out", **SMOKE)
    done = study.run(study.plan(options))
    assert done.tables["models"].status.tolist() == ["ok", "skipped"]
    assert "['a', 'b', 'c']" in done.tables["models"].reason[1]
    items = read(done, "items")
    assert items[items.configuration == "baseline"].label.tolist() == [(1, 2, 0)[i % 3] for i in range(30)]
    plain = load_network(checkpoint_of(path), 3, 0)
    whole_text = checkpoint_of(path).tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = plain(input_ids=whole_text["input_ids"], attention_mask=whole_text["attention_mask"]).logits
    assert items[items.configuration == "deterministic"].prediction.tolist() == logits.argmax(1).tolist()


# --- configurations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_config_mode_is_what_a_model_built_with_these_rates_has(folder: Path, family: str) -> None:
    """Against `own` of a model really built from the changed config, the paper's way, head included."""
    on = ready(folder, family)
    built = type(on.model)(with_rates(on.model.config, attention=0.6, hidden=0.1)).eval()
    wanted = resolve(Placement.parse("own"), examine(built, on.example))
    assert resolve(placement(on, "config", 2), on.site_map) == wanted


@pytest.mark.parametrize("family", ["bert", "gpt-neo", "distilbert", "deberta-v2"])
def test_dropouts_of_a_family_without_known_fields_follow_what_they_serve(
    folder: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = ready(folder, family)
    known = placement(on, "config", 3)
    monkeypatch.delitem(FIELDS, on.model.config.model_type)
    body = [term for term in known.terms if term.name not in ("dropout", "pooler.dropout")]
    guessed = [term for term in placement(on, "config", 3).terms if term.name not in ("dropout", "pooler.dropout")]
    assert guessed == body


def test_component_mode_reaches_attention_weights_and_feed_forward_blocks_alone(folder: Path) -> None:
    on = ready(folder, "albert")
    live = resolve(placement(on, "component", 2), on.site_map)
    assert [(point.position, spec.rate) for point, spec in live.items()] == [
        ("weights", 0.6), ("output", 0.1), ("weights", 0.6), ("output", 0.1),
    ]  # fmt: skip
    assert [(layer, component) for layer, component, _ in layers_of(on.site_map)] == [
        (0, "attention"), (0, "ffn"), (1, "attention"), (1, "ffn"),
    ]  # fmt: skip


def test_the_study_names_the_papers_checkpoints() -> None:
    assert len(CHECKPOINTS) == 19
    assert sum(checkpoint.kind == "decoder" for checkpoint in CHECKPOINTS) == 5
    assert {checkpoint.family for checkpoint in CHECKPOINTS} <= set(FIELDS)
    assert PRESETS["paper"].models == tuple(checkpoint.name for checkpoint in CHECKPOINTS)


# --- passes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masks", ["per_example", "per_pass"])
@pytest.mark.parametrize(("family", "mode"), [("bert", "config"), ("gpt2", "config"), ("deberta-v2", "config"),
                                              ("albert", "component"), ("gpt-neo", "component")])  # fmt: skip
def test_folded_passes_equal_the_plain_loop(folder: Path, family: str, mode: str, masks: str) -> None:
    on = ready(folder, family, tokens=300)  # some passes of a batch at a time, not all
    chosen = placement(on, mode, 4)
    found = torch.full((7, len(on.encoded.tokens), 2), torch.nan)
    engine, forwards = on.engine(chosen, 7, masks, 3), []
    batches = engine.session.data.batches
    for batch in batches:
        for block in engine.samples(0, batch, range(7), forwards.append):
            found[block.first : block.first + len(block.probabilities), batch.rows] = block.probabilities
    assert len(forwards) > len(batches)
    everything = on.encoded.inputs(range(len(on.encoded.tokens)))
    slow = ds.sample(on.model, chosen, everything, 7, seed=3, engine="reference", masks=masks,
                     ids=list(on.encoded.table.item))  # fmt: skip
    assert float((found - slow).abs().max()) < 1e-5
    assert float(slow.std(0).max()) > 1e-3


def test_an_evaluation_is_what_its_passes_say(folder: Path) -> None:
    """Accuracies, frequencies, means and entropies against NumPy on stored passes."""
    on = ready(folder, "electra")
    chosen = placement(on, "config", 4)
    found = evaluate(on, chosen, 9, seed=5)
    everything = on.encoded.inputs(range(len(on.encoded.tokens)))
    p = ds.sample(on.model, chosen, everything, 9, seed=5, engine="reference", ids=list(on.encoded.table.item)).numpy()
    labels, groups = on.encoded.table.label.to_numpy(), on.encoded.table.group.to_numpy()
    right = p.argmax(-1) == labels
    for group, members in (("overall", groups == groups), ("memory", groups == "memory")):
        rows = found.passes[found.passes.group == group]
        assert rows["pass"].tolist() == list(range(9))
        assert np.allclose(rows.accuracy, right[:, members].mean(1))
    mean = p.mean(0)
    entropy = -(mean * np.log(mean)).sum(-1)
    assert np.allclose(found.items.frequency, right.mean(0))
    assert np.allclose(np.stack(found.items.probability), mean, atol=1e-5)
    assert np.allclose(found.items.predictive_entropy, entropy, atol=1e-5)
    assert np.allclose(found.items.bald, entropy + (p * np.log(p)).sum(-1).mean(0), atol=1e-5)


def test_in_bf16_a_shadow_runs_and_its_difference_is_measured(folder: Path) -> None:
    exact = ready(folder, "bert")
    on = bench(exact.model, exact.encoded, CPU, "bf16")
    assert next(on.session.running.parameters()).dtype == torch.bfloat16
    assert next(on.model.parameters()).dtype == torch.float32
    found = evaluate(on, placement(on), 4)
    mean, largest = found.difference
    assert 0 < mean <= largest < 0.05
    assert evaluate(exact, placement(exact), 4).difference == (0.0, 0.0)
    # The masks are the same: rounding moves a probability less than another mask does.
    engines = on.engine(placement(on), 1, "per_example", 0), exact.engine(placement(exact), 1, "per_example", 1)
    one, other = (
        torch.cat([
            block.probabilities.flatten()
            for batch in engine.session.data.batches
            for block in engine.samples(0, batch, range(1))
        ])
        for engine in engines
    )  # fmt: skip
    assert float((one - other).abs().mean()) > 3 * mean


def test_what_bf16_changes_is_said_once(tmp_path: Path) -> None:
    parts = ModelParts(tmp_path, "mine")
    tables = {name: pd.DataFrame({"nothing": []}) for name in ("passes", "items", "audits")}
    for configuration, mean, largest in (("deterministic", 0.0001, 0.031), ("baseline", 0.0004, 0.002)):
        row = {"configuration": configuration, "precision": "bf16", "remarks": ["heard"]}
        parts.write_configuration({**row, "bf16_difference_mean": mean, "bf16_difference_largest": largest}, tables)
    assert parts.model_row(2e-5, None)["remarks"] == (
        "heard; probabilities in bf16 differ from fp32 under the same masks by 0.0001 to 0.0004 on average in a "
        "configuration, 0.031 at most"
    )


def test_a_model_that_stays_random_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published ALBERT: a deterministic configuration with a dropout left on."""
    on = ready(folder, "bert")
    inner = on.model.dropout.forward
    for model in (on.model, on.session.running):  # a session runs in a copy of its own
        monkeypatch.setattr(model.dropout, "forward", lambda x: torch.rand_like(x) * inner(x))
    live = bench(on.model, on.encoded, CPU)
    with pytest.raises(AuditFailed, match="randomness"):
        evaluate(live, Placement.none(), 3)
    with pytest.raises(AuditFailed, match="two plain passes of the deterministic configuration differ"):
        accuracies(on, Placement.none(), 3, "per_example", 0, lambda count: None)


def test_one_site_at_a_time_equals_its_own_evaluation(folder: Path) -> None:
    on = ready(folder, "distilbert")
    table = sensitivity_map(on, 0.6, 4, seed=1).query(
        "layer == 1 and component == 'attention' and group == 'reasoning'"
    )
    alone = evaluate(on, Placement.parse("distilbert.transformer.layer.1.attention#0@weights=0.6"), 4, seed=1).passes
    values = alone[alone.group == "reasoning"].accuracy
    assert table.accuracy.item() == values.mean()
    assert table["std"].item() == values.std()


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_batches_are_sorted_whole_and_waste_little() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 200, 300)
    tokens = tuple(torch.ones(int(length), dtype=torch.int64) for length in lengths)
    table = pd.DataFrame({"item": range(300), "context": range(300), "label": 0})
    found = Encoded(table, tokens, 0, torch.arange(300)).data()
    for at_most in (1, 7, 64):
        data = found.length_sorted(lambda length, most=at_most: most)
        assert sorted(torch.cat([batch.rows for batch in data.batches]).tolist()) == list(range(300))
        assert max(batch.n for batch in data.batches) <= at_most
        widths = [batch.call.kwargs["input_ids"].shape[1] for batch in data.batches]
        assert widths == [int(lengths[batch.rows].max()) for batch in data.batches]
        computed = sum(batch.n * width for batch, width in zip(data.batches, widths, strict=True))
        assert data.padding == pytest.approx(1 - lengths.sum() / computed)
        assert data.padding <= PADDING


def test_no_fewer_batches_waste_as_little() -> None:
    rng = np.random.default_rng(1)
    for _ in range(5):
        lengths = rng.integers(1, 40, 12)
        tokens = tuple(torch.ones(int(length), dtype=torch.int64) for length in lengths)
        table = pd.DataFrame({"item": range(12), "context": range(12), "label": 0})
        sorted_data = Encoded(table, tokens, 0, torch.arange(12)).data().length_sorted(lambda length: 12)
        count, rising = len(sorted_data.batches), np.sort(lengths)
        fewer = [
            sum(len(piece) * piece[-1] for piece in np.split(rising, list(cut)))
            for pieces in range(1, count)
            for cut in itertools.combinations(range(1, 12), pieces - 1)
        ]
        assert all(1 - lengths.sum() / computed > PADDING for computed in fewer)


def long_items(folder: Path, words: int, contexts: int) -> pd.DataFrame:
    table = two_domains(folder / "squad.json", folder / "hellaswag.jsonl", 80).side("test")
    chosen = list(dict.fromkeys(table[table.group == "memory"].context))[:contexts]
    first = table.index[table.context.isin(chosen) & (table.label == 1)]
    table.loc[first, "text"] = " ".join(["w1"] * words)
    return table


def test_a_text_longer_than_the_model_takes_is_counted_and_left_out_with_its_pair(folder: Path) -> None:
    model = checkpoint_of(folder / "roberta")
    assert model.longest == tiny.LONGEST
    at_the_limit, remarks = encode(model, long_items(folder, tiny.LONGEST, 1))
    assert (len(at_the_limit.tokens), remarks) == (16, [])
    load_network(model, 2, 0)(**at_the_limit.inputs([0]))
    kept, remarks = encode(model, long_items(folder, tiny.LONGEST + 1, 1))
    assert len(kept.tokens) == len(kept.table) == 14
    assert remarks == ["2 of 16 items (1 contexts) left out: texts longer than 64 tokens"]
    cut, remarks = encode(model, long_items(folder, tiny.LONGEST + 1, 1), "cut")
    assert max(map(len, cut.tokens)) == tiny.LONGEST
    assert remarks == ["1 of 16 texts were cut to 64 tokens"]
    with refused("long_texts") as caught:
        encode(model, long_items(folder, tiny.LONGEST + 1, 4))
    assert "'memory'" in caught.value.received


# --- training ---------------------------------------------------------------------------------------------------------


def test_training_learns_and_is_not_repeated(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"item": str(i), "context": str(i), "group": "all", "label": i % 2, "split": "train",
             "text": f"{tiny.sentence(i, 4)} {'Question' if i % 2 else 'Answer'}"} for i in range(64)]  # fmt: skip
    model = checkpoint_of(folder / "bert")
    train, _ = encode(model, pd.DataFrame(rows))
    state = torch.get_rng_state()
    training = Training(model, train, 2, Tuning(5e-3, 8), 0, CPU)
    net = fine_tune(tmp_path / "w.safetensors", training, {}, show=False)
    assert torch.equal(state, torch.get_rng_state())
    with torch.no_grad():
        assert (net(**train.inputs(range(64))).logits.argmax(1) == train.labels).float().mean() > 0.95
    monkeypatch.setattr(fine_tuning, "fit", lambda *a, **k: pytest.fail("trained again"))
    again = fine_tune(tmp_path / "w.safetensors", training, {}, show=False)
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), again.state_dict().values(), strict=True))
    with refused("out") as caught:
        fine_tune(tmp_path / "w.safetensors", replace(training, tuning=Tuning(1e-3, 8)), {}, show=False)
    assert "learning_rate" in caught.value.received


def test_the_recipe_is_the_papers() -> None:
    recipe = fine_tuning.recipe(Tuning(), CPU)
    optimizer = recipe.optimizer([torch.nn.Parameter(torch.zeros(1))])
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.defaults["lr"] == 2e-5
    assert (recipe.epochs, recipe.clip, recipe.precision) == (5, 1.0, "32-true")
    assert fine_tuning.recipe(Tuning(), torch.device("cuda")).precision == "16-mixed"
    assert [recipe.score(torch.nn.Identity()) for _ in range(3)] == [0, 1, 2]  # later is better: the last is kept


def test_a_network_for_the_deterministic_configuration_is_trained_without_any_dropout(
    folder: Path, tmp_path: Path
) -> None:
    model, train = checkpoint_of(folder / "albert"), encoded(folder, "albert", "train")
    training = Training(model, train, 2, Tuning(2e-5, 1), 0, CPU, CONFIGURATIONS[0])
    net = fine_tune(tmp_path / "w.safetensors", training, {}, show=False)
    own = examine(net, Call.of(train.inputs(range(2)))).own
    assert {found.rate for found in own.values()} == {0.0}
    other = replace(training, configuration=CONFIGURATIONS[3])
    noisy = fine_tune(tmp_path / "v.safetensors", other, {}, show=False)
    assert {found.rate for found in examine(noisy, Call.of(train.inputs(range(2)))).own.values()} == {0.1, 0.6}


# --- bad input --------------------------------------------------------------------------------------------------------


def test_a_tokenizer_without_pad_or_end_token_is_skipped_with_the_reason(folder: Path, tmp_path: Path) -> None:
    path = tiny.checkpoint(tmp_path / "bare", "gpt2", tokenizer="neither")
    found, missing = read_checkpoints([str(path), str(folder / "gpt2")])
    assert list(found) == [str(folder / "gpt2")]
    assert "tokenizer.pad_token" in missing[str(path)]


def test_an_unknown_name_on_the_hub_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network the reason is said, and the Hub is not asked again for the next model."""
    import transformers

    asked_for = []

    def absent(name: str, **options: Any) -> Any:
        asked_for.append((name, options["local_files_only"]))
        raise OSError("We couldn't connect to the Hub")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", absent)
    monkeypatch.setattr("dropscope.loading.huggingface._hub_answers", lambda: True)  # and then it does not
    found, missing = read_checkpoints(["a/b", "c/d"])
    assert not found
    assert all("couldn't connect" in reason for reason in missing.values())
    assert asked_for == [("a/b", True), ("a/b", False), ("c/d", True)]


def test_a_study_without_any_model_is_an_error(folder: Path, tmp_path: Path) -> None:
    with refused("models") as caught:
        study.run(planned(folder, tmp_path, "./nowhere"))
    assert "./nowhere" in caught.value.received


def test_weights_that_would_have_to_be_unpickled_are_refused(folder: Path, tmp_path: Path) -> None:
    path = tiny.checkpoint(tmp_path / "pickled", "bert")
    (path / "model.safetensors").unlink()
    torch.save({"evil": print}, path / "pytorch_model.bin")
    with refused(str(path)):
        load_network(checkpoint_of(path), 2, 0)
    state = load_network(checkpoint_of(folder / "bert"), 2, 0).state_dict()
    torch.save(state, path / "pytorch_model.bin")
    read_back = load_network(checkpoint_of(path), 2, 0).state_dict()
    assert all(torch.equal(state[name], read_back[name]) for name in state)


@pytest.mark.parametrize(
    ("options", "about"),
    [
        ({"preset": "big"}, "preset"),
        ({"rates": "confg"}, "rates"),
        ({"masks": "none"}, "masks"),
        ({"train": "twice"}, "train"),
        ({"long_texts": "drop"}, "long_texts"),
        ({"precision": "fp8"}, "precision"),
        ({"learning_rate": 2.0}, "learning_rate"),
        ({"passes": 0}, "passes"),
        ({"hellaswag": None}, "hellaswag"),
        ({"data": "own.csv"}, "squad"),
        ({"text_column": "text"}, "text_column"),
        ({"models": ["a", "a"]}, "models"),
        ({"models": []}, "models"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is(folder: Path, options: dict[str, Any], about: str) -> None:
    files = {"squad": folder / "squad.json", "hellaswag": folder / "hellaswag.jsonl"}
    with refused(about):
        study.plan(Options(**{"models": ["x"], **files, **SMOKE, **options}))


# --- the command ------------------------------------------------------------------------------------------------------


def command(folder: Path, *more: str) -> Any:
    files = ["--squad", str(folder / "squad.json"), "--hellaswag", str(folder / "hellaswag.jsonl"), "--preset", "smoke"]
    return CliRunner().invoke(app, ["study", "transformer-profile", *files, "--device", "cpu", *more])


@pytest.mark.usefixtures("no_reports")
def test_the_command_plans_and_runs(folder: Path, tmp_path: Path) -> None:
    models = f"{folder / 'bert'},./nowhere"
    dry = command(folder, "--models", models, "--out", str(tmp_path / "out"), "--dry-run", "--json")
    assert dry.exit_code == 0, dry.output
    plan = json.loads(dry.stdout)
    assert plan["items"] == {"train": 64, "test": 16}
    assert list(plan["missing"]) == ["./nowhere"]
    assert plan["predictions"] == (4 * 5 + 2) * 16 + 2 * 2 * 2 * 16
    assert not (tmp_path / "out").exists()
    file = str(tmp_path / "plan.json")
    registered = command(folder, "--models", models, "--out", str(tmp_path / "out"), "--preregister", file)
    assert registered.exit_code == 0, registered.output
    assert not (tmp_path / "out").exists()
    done = command(folder, "--models", models, "--out", str(tmp_path / "out"), "--preregister", file, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "out" / "preregistration.json").read_text())["differences"] == []
    answer = json.loads(done.stdout)
    assert [row["status"] for row in answer["models"]] == ["ok", "skipped"]
    assert {row["configuration"] for row in answer["accuracies"]} == {c.name for c in CONFIGURATIONS}
    again = command(folder, "--models", models, "--out", str(tmp_path / "out"))
    assert again.exit_code == 0
    assert "deterministic" in again.stdout
    assert "skipped ./nowhere" in again.stderr


def test_the_command_says_what_is_wrong_in_one_line(folder: Path) -> None:
    done = command(folder, "--models", str(folder / "bert"), "--items", "30")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert "--items 40" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_example_runs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    example = Path(__file__).parents[3] / "examples" / "transformer_profile.py"
    files = [str(folder / "bert"), str(folder / "squad.json"), str(folder / "hellaswag.jsonl")]
    monkeypatch.setattr("sys.argv", [str(example), *files, "--preset", "smoke", "--out", str(tmp_path / "out")])
    runpy.run_path(str(example), run_name="__main__")
    printed = capsys.readouterr().out
    assert "deterministic" in printed
    summary = (tmp_path / "out" / "summary.md").read_text()
    assert "recommend" in summary.lower()
    assert " nan" not in summary  # one model has no spread over models: said in words
