"""Hugging Face checkpoints: config, tokenizer and weights from a folder; what cannot be read, or would be unpickled."""

import sys

import pytest
import torch

from dropscope.data.dataset import read_data
from dropscope.errors import CheckpointNotFound, MissingExtra
from dropscope.loading.huggingface import load_classifier, read_checkpoint
from dropscope.loading.names import load_model
from dropscope.loading.sources import load_data
from support.errors import refused


def test_a_checkpoint_needs_the_text_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with refused("transformers") as caught:
        load_model("hf:anything")
    assert isinstance(caught.value, MissingExtra)
    assert "dropscope[text]" in str(caught.value)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A small classifier with a tokenizer of whole words, saved as a user would."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("checkpoint")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "fine", "film", "awful"]
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def test_a_checkpoint_with_a_table(checkpoint, write):
    write("val.csv", "text,label\na fine film,1\nawful,0\n")
    model = load_model(f"hf:{checkpoint}")
    assert not model.remarks
    assert not model.module.training
    found = read_data(load_data("val.csv", model).dataset)
    assert found.labels.tolist() == [1, 0]
    assert found.batches[0].call.kwargs["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]


def test_texts_that_are_cut_are_counted(checkpoint):
    model = load_model(f"hf:{checkpoint}")
    texts = ["word " * 600, "short", "also short", "long " * 600]
    (remark,) = load_data(texts, model).remarks
    assert "2 of 4 texts" in remark
    assert str(model.module.config.max_position_embeddings) in remark
    assert not load_data(texts[1:3], model).remarks
    assert not load_data(texts, model, labelled=False).remarks


def test_a_checkpoint_without_a_trained_head_is_remarked_on(checkpoint, tmp_path):
    transformers = pytest.importorskip("transformers")
    transformers.BertModel(transformers.BertConfig.from_pretrained(checkpoint)).save_pretrained(tmp_path)
    (remark,) = load_model(f"hf:{tmp_path}").remarks
    assert "classifier.weight" in remark


def test_a_checkpoint_that_cannot_be_read_is_an_error(tmp_path):
    pytest.importorskip("transformers")
    with refused(str(tmp_path)) as caught:
        load_model(f"hf:{tmp_path}")
    assert "model.safetensors" in caught.value.remedy


def test_weights_that_would_be_unpickled_are_refused(checkpoint, tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text((checkpoint / "config.json").read_text())
    torch.save(load_model(f"hf:{checkpoint}").module.state_dict(), tmp_path / "pytorch_model.bin")
    with refused(str(tmp_path)) as caught:
        load_model(f"hf:{tmp_path}")
    assert "model.safetensors" in caught.value.remedy


def test_a_plain_state_dict_is_read_where_the_caller_allows_it(checkpoint, tmp_path):
    (tmp_path / "config.json").write_text((checkpoint / "config.json").read_text())
    state = load_classifier(str(checkpoint))[0].state_dict()
    torch.save(state, tmp_path / "pytorch_model.bin")
    found, drawn = load_classifier(str(tmp_path), state_dicts=True)
    assert drawn == ()
    assert all(torch.equal(value, state[name]) for name, value in found.state_dict().items())
    torch.save({"evil": print}, tmp_path / "pytorch_model.bin")
    with refused(str(tmp_path)):
        load_classifier(str(tmp_path), state_dicts=True)


def test_weights_that_are_drawn_come_from_the_seed_and_leave_the_random_state_alone(checkpoint):
    config = read_checkpoint(str(checkpoint)).config
    config.num_labels = 3
    before = torch.get_rng_state()
    first, again, other = (load_classifier(str(checkpoint), config, seed=seed, new_head=True) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert first[1] == ("classifier.bias", "classifier.weight")
    assert torch.equal(first[0].classifier.weight, again[0].classifier.weight)
    assert not torch.equal(first[0].classifier.weight, other[0].classifier.weight)


@pytest.mark.parametrize("name", ["./my-checkpont", "models/my-checkpont", "a/b/my-checkpont", "~/my-checkpont"])
def test_a_mistyped_folder_is_refused_before_anything_is_imported(name, checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "transformers", None)
    for parent in (".", "models"):
        (tmp_path / parent / "my-checkpoint").mkdir(parents=True)
        (tmp_path / parent / "my-checkpoint" / "config.json").touch()
    with pytest.raises(CheckpointNotFound) as caught:
        load_model(f"hf:{name}")
    assert "no such folder" in str(caught.value)
    assert ("'my-checkpoint'?" in str(caught.value)) == (not name.startswith("a/"))


def test_a_name_on_the_hub_without_a_network_is_one_line(tmp_path, monkeypatch, caplog):
    hub = pytest.importorskip("huggingface_hub")
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub.constants, "ENDPOINT", "http://localhost:1")
    monkeypatch.setattr("urllib.request.getproxies", dict)
    for name in ("no-such-checkpoint-anywhere", "nobody/no-such-checkpoint"):
        with pytest.raises(CheckpointNotFound) as caught:
            load_model(f"hf:{name}")
        assert "no answer from the Hub" in str(caught.value)
        assert ".." not in str(caught.value)
    (tmp_path / "no-such-checkpoint").mkdir()
    (tmp_path / "no-such-checkpoint" / "config.json").touch()
    with pytest.raises(CheckpointNotFound) as caught:
        load_model("hf:no-such-checkpont")
    assert "'no-such-checkpoint'?" in str(caught.value)
    assert not caplog.records


def test_a_checkpoint_that_is_nowhere_is_not_one_that_is_broken(tmp_path):
    pytest.importorskip("transformers")
    with refused("./nowhere") as caught:
        read_checkpoint("./nowhere", local=True)
    assert isinstance(caught.value, CheckpointNotFound)
    (tmp_path / "config.json").write_text('{"model_type": "no-such-family"}')
    with refused(str(tmp_path)) as caught:
        read_checkpoint(str(tmp_path), local=True)
    assert not isinstance(caught.value, CheckpointNotFound)
