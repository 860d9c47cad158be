"""Names become models and data, or one clear error; nothing is left behind."""

import sys
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from dropscope.data.dataset import read_data
from dropscope.errors import BadInput, MissingExtra
from dropscope.loading.code import LoadedModel, few_inputs, load_data, load_model
from dropscope.loading.files import ImageFolder, read_table, tokenised

NET = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

def data():
    return torch.ones(5, 4), torch.tensor([0, 1, 2, 0, 1])
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a file into a folder of its own, which is also the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


PLAIN = LoadedModel("net.py:model", nn.Linear(4, 2))


# --- code -------------------------------------------------------------------------------------------------------------


def test_a_file_names_model_and_data(write):
    write("net.py", NET)
    model = load_model("net.py:model")
    x, y = load_data("net.py:data", model)
    assert isinstance(model.module, nn.Sequential)
    assert x.shape == (5, 4)
    assert y.tolist() == [0, 1, 2, 0, 1]


def test_a_module_of_the_current_folder_is_importable(write):
    write("my_package_a/__init__.py", "")
    write("my_package_a/nets.py", NET)
    assert isinstance(load_model("my_package_a.nets:model").module, nn.Sequential)


def test_neighbours_are_importable_while_the_file_runs_and_the_path_is_restored(write):
    write("neighbour_b.py", "WIDTH = 7")
    write("late_b.py", "DEPTH = 2")
    write(
        "net.py",
        "from torch import nn\nimport neighbour_b\n"
        "def model():\n    import late_b\n    return nn.Linear(neighbour_b.WIDTH, late_b.DEPTH)",
    )
    before = list(sys.path)
    model = load_model("net.py:model").module
    assert (model.in_features, model.out_features) == (7, 2)
    assert sys.path == before


def test_a_file_runs_once_and_hides_no_installed_module(write):
    write("torch.py", "RUNS = []\nRUNS.append(1)\nfrom collections import Counter\n" + "def data():\n    return RUNS")
    assert load_data("torch.py:data", PLAIN) is load_data("torch.py:data", PLAIN)
    assert sys.modules["torch"] is torch


def test_what_a_file_prints_is_no_answer(write, capsys):
    write("net.py", "print('loading')\n" + NET)
    load_model("net.py:model")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "loading\n"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nett.py:model", "did you mean 'net.py'"),
        ("net.py:modle", "did you mean 'model'"),
        ("net.py", "write net.py:callable"),
        ("net", "hf:CHECKPOINT"),
        (":model", "hf:CHECKPOINT"),
        ("net.py:", "file.py:callable"),
        ("no_such_module_c.nets:model", "modules are looked for in the current folder"),
        ("net.py:WIDTH", "a callable without arguments; got 'int'"),
        ("net.py:instance", "a callable without arguments; got 'Linear'"),
        ("net.py:needs", "called without arguments; got 'needs(width)'"),
        ("net.py:fails", "net.py:11: ZeroDivisionError: division by zero"),
        ("net.py:leaves", "net.py:13: SystemExit: 3"),
        ("net.py:nothing", "got None for net.py:nothing. Instead: end the function with a return"),
        ("net.py:weights", "returns a torch.nn.Module; got 'OrderedDict'"),
        ("broken.py:model", "broken.py:2: SyntaxError"),
        ("imports.py:model", "imports.py:1: ModuleNotFoundError: No module named 'no_such_module_d'"),
        ("weights.pt", "a model is named by the code that builds it"),
        ("hf:", "write hf:FOLDER or hf:NAME"),
    ],
)
def test_a_name_that_leads_nowhere_gets_one_clear_line(write, name, said):
    write(
        "net.py",
        "import sys\nfrom torch import nn\nWIDTH = 3\ninstance = nn.Linear(2, 2)\ndef model():\n    return instance\n"
        "def needs(width):\n    return instance\n"
        "def fails():\n    x = 0\n    return 1 / x\ndef leaves():\n    sys.exit(3)\n"
        "def nothing():\n    pass\ndef weights():\n    return instance.state_dict() | {}\n",
    )
    write("broken.py", "import torch\ndef model(:\n")
    write("imports.py", "import no_such_module_d\n")
    before = list(sys.path)
    with pytest.raises(BadInput) as error:
        load_model(name)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert sys.path == before


def test_code_that_needs_an_extra_names_it(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "monai", None)
    write("net.py", "def model():\n    import monai\n")
    with pytest.raises(MissingExtra, match=r"dropscope\[medical\]"):
        load_model("net.py:model")


def test_a_checkpoint_needs_the_text_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"dropscope\[text\]"):
        load_model("hf:anything")


def test_data_that_is_none_is_refused(write):
    write("net.py", "def data():\n    pass")
    with pytest.raises(BadInput, match="end the function with a return"):
        load_data("net.py:data", PLAIN)


def test_options_that_do_not_fit_are_refused(write):
    write("net.py", NET)
    with pytest.raises(BadInput, match="leave --text-column out"):
        load_data("net.py:data", PLAIN, text_column="text")
    write("val.csv", "text\na\n")
    with pytest.raises(BadInput, match="takes --text-column and --label-column"):
        load_data("val.csv", PLAIN, image_size="3")


# --- the first few examples -------------------------------------------------------------------------------------------


class _Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(80.0).reshape(20, 4))


X, Y = torch.arange(80.0).reshape(20, 4), torch.zeros(20, dtype=torch.long)


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        X,
        TensorDataset(X, Y),
        DataLoader(TensorDataset(X, Y), batch_size=3, shuffle=True),
        DataLoader(_Stream(), batch_size=8),
        [(X[:8], Y[:8]), (X[8:], Y[8:])],
        iter([(X[:8], Y[:8])]),
    ],
    ids=["pair", "tensor", "dataset", "loader", "stream", "batches", "generator"],
)
def test_the_first_examples_come_in_order_from_any_form(data):
    (few,) = few_inputs(data, nn.Linear(4, 2))
    torch.testing.assert_close(few, X[:8])


def test_inputs_by_name_stay_named():
    few = few_inputs({"input_ids": X.long(), "labels": Y}, nn.Linear(4, 2))
    assert list(few) == ["input_ids"]


def test_a_large_data_set_is_not_read_whole():
    class Large(torch.utils.data.Dataset):
        def __len__(self):
            return 10**9

        def __getitem__(self, index):
            assert index < 8
            return X[index]

    (few,) = few_inputs(Large(), nn.Linear(4, 2))
    assert len(few) == 8


# --- tables of texts --------------------------------------------------------------------------------------------------


class _Tokenizer:
    """Length of each word, padded on the right with 0."""

    def __call__(self, texts, padding, truncation, return_tensors):
        rows = [[len(word) for word in text.split()] for text in texts]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}


CONFIG = types.SimpleNamespace(label2id={"negative": 0, "positive": 1})


def test_every_kind_of_table_reads_alike(tmp_path):
    rows = pd.DataFrame({"text": ["NA", "two words"], "label": [1, 0]})
    rows.to_csv(tmp_path / "a.csv", index=False)
    rows.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    rows.to_parquet(tmp_path / "a.parquet")
    for suffix in ("csv", "jsonl", "parquet"):
        (batch,) = tokenised(tmp_path / f"a.{suffix}", _Tokenizer(), CONFIG)
        assert batch["input_ids"].tolist() == [[2, 0], [3, 5]]
        assert batch["labels"].tolist() == [1, 0]


def test_label_names_are_the_checkpoints(write):
    path = write("a.csv", "review,mood\nfine,positive\nawful,negative\n")
    (batch,) = tokenised(path, _Tokenizer(), CONFIG, "review", "mood")
    assert batch["labels"].tolist() == [1, 0]


def test_a_table_without_labels_is_unlabelled(write):
    (batch,) = tokenised(write("a.csv", "text\nfine\n"), _Tokenizer(), CONFIG)
    assert "labels" not in batch


def test_long_tables_come_in_batches_that_data_reads_in_order(write):
    path = write("a.csv", "text,label\n" + "".join(f"{'x ' * (1 + i % 5)}{'y' * (i + 1)},{i % 2}\n" for i in range(70)))
    found = read_data(tokenised(path, _Tokenizer(), CONFIG))
    assert found.n == 70
    assert found.labels.tolist() == [i % 2 for i in range(70)]


@pytest.mark.parametrize(
    ("name", "text", "options", "said"),
    [
        ("a.csv", "text,label\nfine,1\n ,0\n", {}, "row 2 of a.csv"),
        ("a.csv", "text,label\nfine,1\nbad,\n", {}, "row 2 of a.csv, column 'label'"),
        ("a.csv", "text,label\nfine,positiv\n", {}, "did you mean 'positive'"),
        ("a.csv", "text,label\nfine,0.5\n", {}, "got '0.5'"),
        ("a.csv", "text,label\nfine,-1\n", {}, "got '-1'"),
        ("a.csv", "txt,label\nfine,1\n", {"text_column": "text"}, "did you mean 'txt'"),
        ("a.csv", "review,label\nfine,1\n", {}, "name one of ['review', 'label'] with --text-column"),
        ("a.csv", "text,label\nfine,1\n", {"label_column": "lable"}, "did you mean 'label'"),
        ("a.csv", "", {}, "a .csv file can be read as one"),
        ("a.csv", "text,label\n", {}, "at least one row"),
        ("a.csv", "text,label\na,1\nb,2,3,4\n", {}, "a .csv file can be read as one"),
        ("a.jsonl", '{"text": "fine"}\n{"text": \n', {}, "line 2"),
        ("a.jsonl", '{"text": "fine"}\n[1]\n', {}, "line 2: list, not an object"),
        ("a.jsonl", '{"text": "fine", "label": 1}\n{"text": null, "label": 0}\n', {}, "row 2 of a.jsonl"),
        ("a.jsonl", '{"text": "fine", "label": 1}\n{"text": "bad"}\n', {}, "row 2 of a.jsonl, column 'label'"),
        ("a.parquet", "no parquet", {}, "a .parquet file can be read as one"),
    ],
)
def test_a_table_with_a_fault_says_where(write, name, text, options, said):
    with pytest.raises(BadInput) as error:
        tokenised(write(name, text), _Tokenizer(), CONFIG, **options)
    assert said in str(error.value)


def test_a_table_that_is_no_utf8_or_not_there_is_an_error(tmp_path):
    (tmp_path / "a.csv").write_bytes("text\ncaf\u00e9\n".encode("latin-1"))
    with pytest.raises(BadInput, match="UTF-8"):
        read_table(tmp_path / "a.csv")
    with pytest.raises(BadInput, match=r"did you mean 'a\.csv'"):
        read_table(tmp_path / "b.csv")


def test_a_text_table_needs_a_tokenizer(write):
    write("val.csv", "text,label\nfine,1\n")
    with pytest.raises(BadInput, match="name the model as hf:CHECKPOINT"):
        load_data("val.csv", PLAIN)


# --- Hugging Face -----------------------------------------------------------------------------------------------------


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
    found = read_data(load_data("val.csv", model))
    assert found.labels.tolist() == [1, 0]
    assert found.batches[0].kwargs["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]


def test_a_checkpoint_without_a_trained_head_is_remarked_on(checkpoint, tmp_path):
    transformers = pytest.importorskip("transformers")
    transformers.BertModel(transformers.BertConfig.from_pretrained(checkpoint)).save_pretrained(tmp_path)
    (remark,) = load_model(f"hf:{tmp_path}").remarks
    assert "classifier.weight" in remark


def test_a_checkpoint_that_cannot_be_read_is_an_error(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(BadInput, match=r"model\.safetensors"):
        load_model(f"hf:{tmp_path}")


def test_weights_that_would_be_unpickled_are_refused(checkpoint, tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text((checkpoint / "config.json").read_text())
    torch.save(load_model(f"hf:{checkpoint}").module.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(BadInput, match=r"model\.safetensors"):
        load_model(f"hf:{tmp_path}")


# --- images -----------------------------------------------------------------------------------------------------------


def _save(path: Path, shape: tuple[int, ...], value: int = 51, dtype: type = np.uint8) -> None:
    Image.fromarray(np.full(shape, value, dtype)).save(path)


def test_images_are_channels_first_in_0_to_1(write, tmp_path):
    _save(tmp_path / "a.png", (4, 6, 3))
    _save(tmp_path / "b.png", (4, 6, 4))  # an alpha channel is left out
    write("labels.csv", "file,label\na.png,1\nb.png,0\n")
    found = read_data(load_data(str(tmp_path), PLAIN))
    (x,) = found.batches[0].args
    assert found.labels.tolist() == [1, 0]
    torch.testing.assert_close(x, torch.full((2, 3, 4, 6), 0.2))


def test_grey_images_of_8_and_16_bits_are_one_channel(write, tmp_path):
    _save(tmp_path / "a.png", (4, 6))
    _save(tmp_path / "b.png", (4, 6), 13107, np.uint16)
    table = write("labels.csv", "file\na.png\nb.png\n")
    for image in (*ImageFolder(tmp_path, table), *ImageFolder(tmp_path, table, image_size="2x5")):
        assert image.shape[0] == 1
        torch.testing.assert_close(image, torch.full_like(image, 0.2))


def test_an_image_that_is_cut_off_is_named(write, tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3)).astype(np.uint8)
    for name in ("a.png", "b.png"):
        Image.fromarray(noise).save(tmp_path / name)
    whole = (tmp_path / "b.png").read_bytes()
    (tmp_path / "b.png").write_bytes(whole[: len(whole) // 2])  # the header is whole
    folder = ImageFolder(tmp_path, write("labels.csv", "file,label\na.png,1\nb.png,0\n"))
    with pytest.raises(BadInput, match=r"b\.png"):
        read_data(folder)


def test_images_are_resized_on_request(write, tmp_path):
    _save(tmp_path / "a.png", (4, 6))
    _save(tmp_path / "b.png", (5, 5))
    table = write("labels.csv", "file,label\na.png,1\nb.png,0\n")
    assert [tuple(x.shape) for x, _ in ImageFolder(tmp_path, table, image_size="3")] == [(1, 3, 3)] * 2
    assert [tuple(x.shape) for x, _ in ImageFolder(tmp_path, table, image_size="2x7")] == [(1, 2, 7)] * 2
    with pytest.raises(BadInput, match="give --image-size"):
        ImageFolder(tmp_path, table)


@pytest.mark.parametrize(
    ("table", "options", "said"),
    [
        ("file,label\nc.png,1\n", {}, "row 1 of labels.csv"),
        ("file,label\nlabels.csv,1\n", {}, "convert it to PNG or JPEG"),
        ("file,label\nfloat.tif,1\n", {}, "in mode F"),
        ("file,label\na.png,1\nrgb.png,1\n", {"image_size": "4"}, "convert where some are grey"),
        ("file,label\na.png,cat\n", {}, "write the number of the class"),
        ("image,label\na.png,1\n", {}, "the column 'file'"),
        ("file,label\na.png,1\n", {"image_size": "0"}, "write 224 or 200x320"),
        ("file,label\na.png,1\n", {"image_size": "big"}, "write 224 or 200x320"),
        ("file,label\na.png,1\n", {"label_column": "lable"}, "did you mean 'label'"),
    ],
)
def test_an_image_folder_with_a_fault_says_where(write, tmp_path, table, options, said):
    _save(tmp_path / "a.png", (4, 6))
    _save(tmp_path / "rgb.png", (4, 6, 3))
    Image.fromarray(np.zeros((4, 6), np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(BadInput) as error:
        ImageFolder(tmp_path, write("labels.csv", table), **options)
    assert said in str(error.value)
