"""Checkpoints whose files are broken: every one is refused in one line, before memory or time is spent on it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dropscope.loading.huggingface import load_classifier, read_checkpoint
from dropscope.loading.inspection import inspect_weights
from support import broken_checkpoints as broken
from support import checkpoint_fuzz, zoo
from support import tiny_checkpoints as tiny
from support.errors import refused

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return broken.make_checkpoint(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(sound, tmp_path / "copy"))


def test_a_sound_checkpoint_is_read(folder: Path) -> None:
    weights = inspect_weights(folder, str(folder))
    model, drawn = load_classifier(str(folder))
    assert drawn == ()
    assert weights.shapes == {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert weights.numbers == sum(value.numel() for value in model.state_dict().values())
    assert read_checkpoint(str(folder), local=True).longest == 64


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_every_family_passes(family: str, tmp_path: Path) -> None:
    path = str(tiny.checkpoint(tmp_path, family))
    assert load_classifier(path, read_checkpoint(path, local=True).config)[1] == ()


@pytest.mark.parametrize("name", broken.BROKEN)
def test_a_broken_model_is_refused(name: str, folder: Path) -> None:
    broken.BROKEN[name](folder)
    with refused(str(folder)) as caught:
        load_classifier(str(folder))
    assert "\n" not in str(caught.value)
    assert not (folder / "code-ran").exists()


@pytest.mark.parametrize("name", broken.BROKEN_TOKENIZERS)
def test_a_broken_tokenizer_is_refused(name: str, folder: Path) -> None:
    broken.BROKEN_TOKENIZERS[name](folder)
    with refused(str(folder)) as caught:
        read_checkpoint(str(folder), local=True)
    assert "\n" not in str(caught.value)


def test_what_would_hang_or_fill_memory_is_refused_in_little_of_either(tmp_path: Path) -> None:
    """In processes of their own, with a limit on time and memory; random changes of every file beside them."""
    ran = subprocess.run(
        [sys.executable, "-m", "support.checkpoint_fuzz", "3", "out end|huge|large|2**63|random"],
        cwd=Path(checkpoint_fuzz.__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    *lines, summary = ran.stdout.splitlines()
    assert len(lines) > 30
    assert [line for line in lines if " refused: " not in line and " loads" not in line] == [], summary


def test_a_state_dict_is_inspected_too(folder: Path) -> None:
    state = load_classifier(str(folder))[0].state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    broken.fields("config.json", num_hidden_layers=10**7)(folder)
    with refused(str(folder)) as caught:
        load_classifier(str(folder), state_dicts=True)
    assert "num_hidden_layers" in caught.value.what
    broken.pickled(folder)
    broken.fields("config.json", num_hidden_layers=2)(folder)
    with refused(str(folder)):
        load_classifier(str(folder), state_dicts=True)
    assert not (folder / "code-ran").exists()


def test_a_head_of_another_size_is_drawn_but_not_a_body(folder: Path) -> None:
    config = read_checkpoint(str(folder), local=True).config
    config.num_labels = 5
    assert load_classifier(str(folder), config, new_head=True)[1] == ("classifier.bias", "classifier.weight")
    config.intermediate_size = 8
    with refused(str(folder)):
        load_classifier(str(folder), config, new_head=True)


def test_the_body_alone_is_compared_too(folder: Path) -> None:
    """As sentence encoders are stored: without the name of the body before each weight, and without a head."""
    import transformers

    transformers.BertModel.from_pretrained(folder).save_pretrained(folder)
    assert load_classifier(str(folder))[1] == ("classifier.bias", "classifier.weight")
    for field, value in (("hidden_size", 32), ("num_hidden_layers", 1), ("num_hidden_layers", 3)):
        broken.fields("config.json", **{"hidden_size": 16, "num_hidden_layers": 2, field: value})(folder)
        with refused(str(folder)):
            load_classifier(str(folder))


def test_fewer_layers_than_the_weights_have_are_refused(folder: Path) -> None:
    broken.fields("config.json", num_hidden_layers=1)(folder)
    with refused(str(folder)) as caught:
        load_classifier(str(folder))
    assert "layer.1." in str(caught.value.received)
