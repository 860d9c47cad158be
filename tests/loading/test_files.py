"""Tables, JSON lines and image folders: what they become, and where they are at fault."""

import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

from dropscope.data.dataset import read_data
from dropscope.loading.files import ImageFolder, column_texts, read_json_lines, read_table, token_batches
from dropscope.loading.names import LoadedModel, load_data
from support.errors import refused

PLAIN = LoadedModel("net.py:model", nn.Linear(4, 2))


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
        (batch,) = token_batches(tmp_path / f"a.{suffix}", _Tokenizer(), CONFIG)
        assert batch["input_ids"].tolist() == [[2, 0], [3, 5]]
        assert batch["labels"].tolist() == [1, 0]


def test_label_names_are_the_checkpoints(write):
    path = write("a.csv", "review,mood\nfine,positive\nawful,negative\n")
    (batch,) = token_batches(path, _Tokenizer(), CONFIG, "review", "mood")
    assert batch["labels"].tolist() == [1, 0]


def test_a_table_without_labels_is_unlabelled(write):
    (batch,) = token_batches(write("a.csv", "text\nfine\n"), _Tokenizer(), CONFIG)
    assert "labels" not in batch


def test_long_tables_come_in_batches_that_data_reads_in_order(write):
    path = write("a.csv", "text,label\n" + "".join(f"{'x ' * (1 + i % 5)}{'y' * (i + 1)},{i % 2}\n" for i in range(70)))
    found = read_data(token_batches(path, _Tokenizer(), CONFIG))
    assert found.n == 70
    assert found.labels.tolist() == [i % 2 for i in range(70)]


@pytest.mark.parametrize(
    ("name", "text", "options", "about", "said"),
    [
        ("a.csv", "text,label\nfine,1\n ,0\n", {}, "row 2 of a.csv", "'text'"),
        ("a.csv", "text,label\nfine,1\nbad,\n", {}, "row 2 of a.csv, column 'label'", "''"),
        ("a.csv", "text,label\nfine,positiv\n", {}, "row 1 of a.csv, column 'label'", "did you mean 'positive'"),
        ("a.csv", "text,label\nfine,0.5\n", {}, "row 1 of a.csv, column 'label'", "got '0.5'"),
        ("a.csv", "text,label\nfine,-1\n", {}, "row 1 of a.csv, column 'label'", "got '-1'"),
        ("a.csv", "txt,label\nfine,1\n", {"text_column": "text"}, "text_column", "Did you mean 'txt'?"),
        ("a.csv", "review,label\nfine,1\n", {}, "text_column", "['review', 'label']"),
        ("a.csv", "text,label\nfine,1\n", {"label_column": "lable"}, "label_column", "Did you mean 'label'"),
        ("a.csv", "", {}, "a.csv", ".csv"),
        ("a.csv", "text,label\n", {}, "a.csv", "no rows"),
        ("a.csv", "text,label\na,1\nb,2,3,4\n", {}, "a.csv", "line 3"),
        ("a.jsonl", '{"text": "fine"}\n{"text": \n', {}, "a.jsonl, line 2", "Expecting value"),
        ("a.jsonl", '{"text": "fine"}\n[1]\n', {}, "a.jsonl, line 2", "got list"),
        ("a.jsonl", '{"text": "fine", "label": 1}\n{"text": null, "label": 0}\n', {}, "row 2 of a.jsonl", "None"),
        ("a.jsonl", '{"text": "fine", "label": 1}\n{"text": "bad"}\n', {}, "row 2 of a.jsonl, column 'label'", "nan"),
        ("a.parquet", "no parquet", {}, "a.parquet", ".parquet"),
    ],
)
def test_a_table_with_a_fault_says_where(write, name, text, options, about, said):
    with refused(about) as caught:
        token_batches(write(name, text), _Tokenizer(), CONFIG, **options)
    assert said in str(caught.value)


def test_a_table_that_is_no_utf8_or_not_there_is_an_error(tmp_path):
    (tmp_path / "a.csv").write_bytes("text\ncaf\u00e9\n".encode("latin-1"))
    with refused("a.csv") as caught:
        read_table(tmp_path / "a.csv")
    assert "UTF-8" in caught.value.remedy
    with refused("data") as caught:
        read_table(tmp_path / "b.csv")
    assert "'a.csv'" in caught.value.remedy


def test_json_lines_carry_their_numbers_and_end_where_json_says_so(write):
    path = write("a.jsonl", '{"a": 1}\r\n\n{"a": "x\u2028y"}\n')
    assert read_json_lines(path) == [(1, {"a": 1}), (3, {"a": "x\u2028y"})]
    with refused("stories"):
        read_json_lines(path.with_name("absent.jsonl"), "stories")


def test_a_column_is_read_as_texts_with_whole_numbers_whole(tmp_path):
    table = pd.DataFrame({"a": [1.0, 2.5, " x "], "b": [1, None, 3]}, dtype=object)
    assert column_texts(table, "a", tmp_path / "a.csv") == ["1", "2.5", "x"]
    with refused("row 2 of a.csv"):
        column_texts(table, "b", tmp_path / "a.csv")


# --- images -----------------------------------------------------------------------------------------------------------


def _save(path: Path, shape: tuple[int, ...], value: int = 51, dtype: type = np.uint8) -> None:
    Image.fromarray(np.full(shape, value, dtype)).save(path)


def test_images_are_channels_first_in_0_to_1(write, tmp_path):
    _save(tmp_path / "a.png", (4, 6, 3))
    _save(tmp_path / "b.png", (4, 6, 4))  # an alpha channel is left out
    write("labels.csv", "file,label\na.png,1\nb.png,0\n")
    found = read_data(load_data(str(tmp_path), PLAIN))
    (x,) = found.batches[0].call.args
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
    with refused(str(tmp_path / "b.png")):
        read_data(folder)


def test_images_are_resized_on_request(write, tmp_path):
    _save(tmp_path / "a.png", (4, 6))
    _save(tmp_path / "b.png", (5, 5))
    table = write("labels.csv", "file,label\na.png,1\nb.png,0\n")
    assert [tuple(x.shape) for x, _ in ImageFolder(tmp_path, table, image_size="3")] == [(1, 3, 3)] * 2
    assert [tuple(x.shape) for x, _ in ImageFolder(tmp_path, table, image_size="2x7")] == [(1, 2, 7)] * 2
    with refused("image_size") as caught:
        ImageFolder(tmp_path, table)
    assert caught.value.received == ["a.png: 6x4 grey", "b.png: 5x5 grey"]


@pytest.mark.parametrize(
    ("table", "options", "about", "said"),
    [
        ("file,label\nc.png,1\n", {}, "row 1 of labels.csv", "'c.png'"),
        ("file,label\nlabels.csv,1\n", {}, "row 1 of labels.csv", "PNG or JPEG"),
        ("file,label\nfloat.tif,1\n", {}, "row 1 of labels.csv", "float.tif in mode F"),
        ("file,label\na.png,1\nrgb.png,1\n", {"image_size": "4"}, "image_size", "rgb.png: 4x4 colour"),
        ("file,label\na.png,cat\n", {}, "row 1 of labels.csv, column 'label'", "'cat'"),
        ("image,label\na.png,1\n", {}, "file", "labels.csv"),
        ("file,label\na.png,1\n", {"image_size": "0"}, "image_size", "224 or 200x320"),
        ("file,label\na.png,1\n", {"image_size": "big"}, "image_size", "224 or 200x320"),
        ("file,label\na.png,1\n", {"label_column": "lable"}, "label_column", "Did you mean 'label'"),
    ],
)
def test_an_image_folder_with_a_fault_says_where(write, tmp_path, table, options, about, said):
    _save(tmp_path / "a.png", (4, 6))
    _save(tmp_path / "rgb.png", (4, 6, 3))
    Image.fromarray(np.zeros((4, 6), np.float32)).save(tmp_path / "float.tif")
    with refused(about) as caught:
        ImageFolder(tmp_path, write("labels.csv", table), **options)
    assert said in str(caught.value)
