"""Tables, JSON lines and texts: what they become, and where they are at fault."""

import contextlib
import io

import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dropscope.data.dataset import read_data
from dropscope.errors import BadInput
from dropscope.loading.sources import load_data
from dropscope.loading.tables import column_texts, read_json_lines, read_table
from support.damage import damages, write_damaged
from support.errors import refused
from support.word_lengths import WordLengths

NAMES = ("negative", "positive")


def token_batches(path, text_column=None, label_column=None):
    options = {"text_column": text_column, "label_column": label_column}
    return list(load_data(path, tokenizer=WordLengths(), class_names=NAMES, **options).dataset)


def test_every_kind_of_table_reads_alike(tmp_path):
    rows = pd.DataFrame({"text": ["NA", "two words"], "label": [1, 0]})
    rows.to_csv(tmp_path / "a.csv", index=False)
    rows.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    rows.to_parquet(tmp_path / "a.parquet")
    for suffix in ("csv", "jsonl", "parquet"):
        (batch,) = token_batches(tmp_path / f"a.{suffix}")
        assert batch["input_ids"].tolist() == [[2, 0], [3, 5]]
        assert batch["labels"].tolist() == [1, 0]


def test_label_names_are_the_checkpoints(write):
    path = write("a.csv", "review,mood\nfine,positive\nawful,negative\n")
    (batch,) = token_batches(path, "review", "mood")
    assert batch["labels"].tolist() == [1, 0]


def test_a_table_without_labels_is_unlabelled(write):
    (batch,) = token_batches(write("a.csv", "text\nfine\n"))
    assert "labels" not in batch


def test_long_tables_come_in_batches_that_data_reads_in_order(write):
    path = write("a.csv", "text,label\n" + "".join(f"{'x ' * (1 + i % 5)}{'y' * (i + 1)},{i % 2}\n" for i in range(70)))
    found = read_data(token_batches(path))
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
        token_batches(write(name, text), **options)
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


# --- tables that mean harm --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "about"),
    [
        ("a.csv", "text,label\nfine,10000000000000000000\n", "row 1 of a.csv, column 'label'"),
        ("a.csv", f"text,label\nfine,{'9' * 400}\n", "row 1 of a.csv, column 'label'"),
        ("a.csv", "text,label\nfine,1,2\nbad,0,3\n", "a.csv"),  # more fields than the header: nothing may shift
        ("a.csv", "text,label\nfine,inf\n", "row 1 of a.csv, column 'label'"),
        ("a.jsonl", '{"text": "fine", "label": ' + "9" * 400 + "}", "row 1 of a.jsonl, column 'label'"),
        ("a.jsonl", '{"text": "fine", "label": ' + "9" * 9999 + "}", "a.jsonl, line 1"),
        ("a.jsonl", '{"text": ' + "[" * 200_000 + "]" * 200_000 + "}", "a.jsonl, line 1"),
        ("a.jsonl", '{"text": [["fine"]]}', "row 1 of a.jsonl"),
        ("a.jsonl", '{"text": "half \\ud800"}', "row 1 of a.jsonl"),
        ("a.jsonl", '{"half \\ud800": "fine"}', "a.jsonl"),
        ("a" * 300 + ".csv", None, "data"),
        ("no/such/a.csv", None, "data"),
        ("folder.csv/", None, "data"),
    ],
    ids=range(13),
)
def test_a_table_that_means_harm_is_one_clear_line(write, tmp_path, name, content, about):
    (tmp_path / "folder.csv").mkdir()
    path = tmp_path / name if content is None else write(name, content)
    if name == "folder.csv/":
        with refused("data"):
            read_table(path)
        return
    with refused(about) as caught:
        token_batches(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 900
    str(caught.value).encode()


def test_a_table_whose_metadata_is_broken_is_read_all_the_same(tmp_path):
    table = pa.table({"text": ["fine", "bad"], "label": [1, 0]})
    for metadata in (b"{", b'{"index_columns": ["gone"], "columns": 3}', b"\xff"):
        pa.parquet.write_table(table.replace_schema_metadata({b"pandas": metadata}), tmp_path / "a.parquet")
        (batch,) = token_batches(tmp_path / "a.parquet")
        assert batch["labels"].tolist() == [1, 0]


def test_texts_that_are_no_utf8_are_refused_in_parquet_too(tmp_path):
    raw = pa.array([b"caf\xe9"], pa.binary()).view(pa.string())
    pa.parquet.write_table(pa.table({"text": raw}), tmp_path / "a.parquet")
    with refused("a.parquet"):
        token_batches(tmp_path / "a.parquet")


def test_a_byte_order_mark_is_no_part_of_a_table(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbftext,label\nfine,1\n")
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "fine", "label": 1}\n')
    for name in ("a.csv", "a.jsonl"):
        (batch,) = token_batches(tmp_path / name)
        assert batch["labels"].tolist() == [1]


def _tables() -> list[tuple[str, bytes]]:
    frame = pd.DataFrame({"text": ["a fine film", 'caf\u00e9, "bad"\n', "x"], "label": [0, 1, 1]})
    parquet = io.BytesIO()
    frame.to_parquet(parquet)
    texts = (frame.to_csv(index=False), frame.to_json(orient="records", lines=True))
    return [("csv", texts[0].encode()), ("jsonl", texts[1].encode()), ("parquet", parquet.getvalue())]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(_tables()), damages(5000))
def test_a_table_of_damaged_bytes_is_read_or_refused(tmp_path_factory, table, damage):
    path = write_damaged(tmp_path_factory.mktemp("damaged"), *table, damage)
    with contextlib.suppress(BadInput):
        token_batches(path)


def test_a_table_of_numbers_is_told_how_it_is_read(tmp_path):
    pd.DataFrame({"height": [1.5, 2.0], "weight": [3, 4], "label": [0, 1]}).to_csv(tmp_path / "n.csv", index=False)
    with refused("text_column") as caught:
        token_batches(tmp_path / "n.csv")
    assert "file.py:callable" in caught.value.remedy
