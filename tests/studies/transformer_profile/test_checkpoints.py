"""Checkpoints and files that are not what they seem: said or refused, and the other models go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from dropscope.engine import loop
from dropscope.errors import AuditFailed
from dropscope.loading.huggingface import Checkpoint
from dropscope.placement.placement import Placement
from dropscope.report.summaries import Summary, verdict_table
from dropscope.studies.transformer_profile import study
from dropscope.studies.transformer_profile.checkpoints import kind_of, load_network, read_checkpoints
from dropscope.studies.transformer_profile.domains import read_hellaswag
from dropscope.studies.transformer_profile.evaluation import bench, evaluate
from dropscope.studies.transformer_profile.items import read_items, two_domains
from dropscope.studies.transformer_profile.options import Options, Plan
from dropscope.studies.transformer_profile.tokens import Encoded, encode
from dropscope.studies.transformer_profile.variants import Variant
from support import tiny_checkpoints as tiny
from support.errors import refused

transformers: Any = pytest.importorskip("transformers")

CPU = torch.device("cpu")
QUIET: dict[str, Any] = {"device": "cpu", "progress": False}


@pytest.fixture(autouse=True)
def _no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "write_report", lambda plan, models: (Summary((), (), verdict_table(())), {}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("checkpoints")
    tiny.checkpoint(at / "bert", "bert")
    tiny.squad(at / "squad.json")
    tiny.hellaswag(at / "hellaswag.jsonl")
    return at


def two(folder: Path, *models: Path, **options: Any) -> Plan:
    files = {"squad": folder / "squad.json", "hellaswag": folder / "hellaswag.jsonl"}
    return study.plan(Options([str(model) for model in models], **files, preset="smoke", **QUIET, **options))


def stars(path: Path, labels: list[int], rows: int = 40) -> Path:
    table = [{"text": tiny.sentence(i), "stars": labels[i % len(labels)]} for i in range(rows)]
    pd.DataFrame(table).to_csv(path, index=False)
    return path


# --- one that breaks does not stop the others -------------------------------------------------------------------------


def test_a_broken_checkpoint_is_said_and_the_rest_goes_on(folder: Path, tmp_path: Path) -> None:
    cut = tiny.checkpoint(tmp_path / "cut", "bert")
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    few = tiny.checkpoint(tmp_path / "few", "bert", vocab_size=20)
    sick = tiny.checkpoint(tmp_path / "sick", "bert")
    net = transformers.BertForSequenceClassification.from_pretrained(sick)
    net.classifier.weight.data[0, 0] = torch.nan
    net.save_pretrained(sick)
    done = study.run(two(folder, cut, few, sick, folder / "bert", out=tmp_path / "out"))
    models = done.tables["models"]
    assert models.status.tolist() == ["skipped", "skipped", "skipped", "ok"]
    assert str(cut) in models.reason[0]
    assert "safetensors" in models.reason[0]
    assert "vocab_size" in models.reason[1]
    assert "finite" in models.reason[2]


def test_any_other_failure_of_one_model_is_said_too(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tiny.checkpoint(tmp_path / "other", "bert")
    profile_model = study.profile_model

    def failing(plan: Plan, checkpoint: Checkpoint, variant: Variant) -> None:
        if checkpoint.name == str(other):
            raise IndexError("index 60 is out of bounds")
        profile_model(plan, checkpoint, variant)

    monkeypatch.setattr(study, "profile_model", failing)
    models = study.run(two(folder, other, folder / "bert", out=tmp_path / "out")).tables["models"]
    assert models.status.tolist() == ["skipped", "ok"]
    assert models.reason[0] == "it failed: IndexError: index 60 is out of bounds"


def test_results_of_a_checkpoint_that_changed_are_not_shown_as_its_own(folder: Path, tmp_path: Path) -> None:
    mine = tiny.checkpoint(tmp_path / "mine", "bert")
    study.run(two(folder, mine, folder / "bert", out=tmp_path / "out"))
    net = transformers.BertForSequenceClassification.from_pretrained(mine)
    net.classifier.weight.data.neg_()
    net.save_pretrained(mine)
    models = study.run(two(folder, mine, folder / "bert", out=tmp_path / "out")).tables["models"]
    assert models.status.tolist() == ["skipped", "ok"]
    assert "results of other files than its own" in models.reason[0]


# --- what a model is --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("config", "kind"), [
    ("BertConfig", "encoder"), ("RobertaConfig", "encoder"), ("DebertaV2Config", "encoder"), ("MPNetConfig", "encoder"),
    ("XLNetConfig", "encoder"), ("BartConfig", "encoder"), ("GPT2Config", "decoder"), ("GPTNeoConfig", "decoder"),
    ("LlamaConfig", "decoder"), ("OPTConfig", "decoder"), ("Qwen2Config", "decoder"),
])  # fmt: skip
def test_decoders_are_known_by_what_they_are_made_for(config: str, kind: str) -> None:
    assert kind_of(getattr(transformers, config)()) == kind


def test_texts_of_a_family_that_counts_positions_from_its_padding_are_measured_so(tmp_path: Path) -> None:
    fast = tiny.whole_words()
    config = transformers.RobertaPreLayerNormConfig(
        vocab_size=len(fast), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=30, pad_token_id=0,
    )  # fmt: skip
    transformers.RobertaPreLayerNormForSequenceClassification(config).save_pretrained(tmp_path)
    fast.save_pretrained(tmp_path)
    found = read_checkpoints([str(tmp_path)])[0][str(tmp_path)]
    assert found.longest == 29
    net = load_network(found, 2, 0)
    net(input_ids=torch.full((1, 29), 5))
    with pytest.raises((IndexError, RuntimeError), match=r"out of (bounds|range)"):
        net(input_ids=torch.full((1, 30), 5))


def test_training_per_configuration_says_what_an_unknown_family_can_do(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dropscope.injection.families import FIELDS

    monkeypatch.delitem(FIELDS, "bert")
    with refused("train") as caught:
        study.run(two(folder, folder / "bert", train="per_configuration", out=tmp_path / "out"))
    assert caught.value.received == "bert"


# --- labels -----------------------------------------------------------------------------------------------------------


def test_numbers_are_names_of_classes_without_a_class_that_is_not_there(tmp_path: Path) -> None:
    found = read_items(stars(tmp_path / "stars.csv", [1, 10, 5]), label_column="stars")
    assert found.classes == ("1", "5", "10")
    assert found.table.label.tolist()[:3] == [0, 2, 1]


def test_a_column_that_holds_no_classes_is_refused(tmp_path: Path) -> None:
    with refused("label_column") as caught:
        read_items(stars(tmp_path / "ids.csv", list(range(40))), label_column="stars")
    assert caught.value.received == "40 different ones in 40 rows"


@pytest.mark.parametrize(("labels", "fine"), [([1, 2, 3, 4], False), ([0, 1, 3], True), ([0, 5], False)])
def test_numbers_count_the_classes_of_a_trained_checkpoint_from_0(
    tmp_path: Path, labels: list[int], fine: bool
) -> None:
    """One to four stars for a checkpoint of five: the first would be taken for the second."""
    mine = tiny.checkpoint(tmp_path / "mine", "bert", classes=5)
    file = stars(tmp_path / "stars.csv", labels)
    options = Options([str(mine)], data=file, label_column="stars", preset="smoke", train="none", out=tmp_path / "out",
                      **QUIET)  # fmt: skip
    asked = study.plan(options)
    if fine:
        done = study.run(asked)
        items = pd.read_parquet(done.folder / "items.parquet")
        assert set(items.label) == set(labels)
    else:
        with refused("label_column") as caught:
            study.run(asked)
        assert caught.value.received == [str(label) for label in labels]


# --- passes -----------------------------------------------------------------------------------------------------------


def items_of(folder: Path) -> tuple[Checkpoint, Encoded]:
    checkpoint = read_checkpoints([str(folder / "bert")])[0][str(folder / "bert")]
    return checkpoint, encode(
        checkpoint, two_domains(folder / "squad.json", folder / "hellaswag.jsonl", 80).side("test")
    )[0]


def test_a_batch_of_long_texts_holds_fewer_of_them(folder: Path) -> None:
    _, found = items_of(folder)
    batches = found.data().length_sorted(lambda length: max(1, 40 // length)).batches
    assert all(batch.n <= max(1, 40 // batch.call.kwargs["input_ids"].shape[1]) for batch in batches)
    rows = torch.cat([batch.rows for batch in batches if batch.rows is not None])
    assert sorted(rows.tolist()) == list(range(len(found.tokens)))


def test_plain_passes_that_differ_are_seen_also_where_each_runs_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, found = items_of(folder)
    on = bench(load_network(checkpoint, 2, 0), found, CPU, tokens=1)  # one pass of one item at a time
    assert evaluate(on, Placement.none(), 3).passes.accuracy.groupby(lambda i: i // 3).nunique().eq(1).all()
    probabilities = loop.probabilities
    calls = iter(range(10_000))

    def trembling(output: Any, outputs: Any, check: bool) -> Tensor:
        return probabilities(output, outputs, check=check) + 1e-6 * next(calls)

    monkeypatch.setattr(loop, "probabilities", trembling)
    with pytest.raises(AuditFailed, match="two plain passes of the deterministic configuration differ"):
        evaluate(on, Placement.none(), 3)


@pytest.mark.parametrize(("name", "value"), [("passes", 1), ("items", 0)])
def test_too_few_is_said(folder: Path, name: str, value: int) -> None:
    with refused(name) as caught:
        two(folder, folder / "bert", **{name: value})
    assert caught.value.received == value


# --- lines ------------------------------------------------------------------------------------------------------------


def test_a_line_ends_where_json_says_so(tmp_path: Path) -> None:
    story = {"ctx": "w1\u2028w2", "endings": ["a", "b", "c", "d"], "label": 1}
    path = tmp_path / "stories.jsonl"
    path.write_text(json.dumps(story, ensure_ascii=False) + "\r\n", encoding="utf-8")
    assert read_hellaswag(path)[0].context == "w1 w2"
    path.write_text(json.dumps({**story, "label": "²"}) + "\n", encoding="utf-8")
    with refused("stories.jsonl, line 1") as caught:
        read_hellaswag(path)
    assert caught.value.received == "²"
