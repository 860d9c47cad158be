"""The items of the transformer study: official files in, balanced pairs out, no context on both sides of the split."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dropscope.studies.transformer_profile.domains import read_hellaswag, read_squad
from dropscope.studies.transformer_profile.items import COLUMNS, Items, read_items, two_domains
from support import tiny_checkpoints as tiny
from support.errors import refused


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("data")
    return tiny.squad(folder / "squad.json"), tiny.hellaswag(folder / "hellaswag.jsonl")


def check_contract(found: Items, items: int) -> None:
    table = found.table
    assert list(table.columns) == list(COLUMNS)
    assert len(table) == items == table.item.nunique()
    for group in ("memory", "reasoning"):
        for split, share in (("train", 4), ("test", 1)):
            for label in (0, 1):
                here = (table.group == group) & (table.split == split) & (table.label == label)
                assert here.sum() == items * share // 20
    assert (table.groupby("context").split.nunique() == 1).all()
    assert (table.groupby("context").label.apply(sorted).map(tuple) == (0, 1)).all()


def test_both_domains_are_balanced_and_split_by_context(files: tuple[Path, Path]) -> None:
    check_contract(two_domains(*files, items=80), 80)


def test_the_same_seed_gives_the_same_table_and_another_another(files: tuple[Path, Path], tmp_path: Path) -> None:
    first, again, other = (two_domains(*files, items=80, seed=seed) for seed in (42, 42, 43))
    pd.testing.assert_frame_equal(first.table, again.table)
    assert first.fingerprint == again.fingerprint != other.fingerprint
    pd.testing.assert_frame_equal(pd.read_parquet(first.save(tmp_path / "items.parquet")), first.table)


def test_every_answer_is_once_right_and_once_wrong_on_its_side(files: tuple[Path, Path]) -> None:
    table = two_domains(*files, items=80).table
    memory = table[table.group == "memory"].assign(answer=lambda t: t.text.str.rpartition("Answer: ")[2])
    counts = memory.groupby(["split", "answer"]).label.apply(sorted)
    assert all(labels == [0, 1] for labels in counts)


def test_a_wrong_ending_is_one_of_the_same_story(files: tuple[Path, Path]) -> None:
    stories = {f"hellaswag-{story.id}": story for story in read_hellaswag(files[1])}
    table = two_domains(*files, items=80).table
    for row in table[table.group == "reasoning"].itertuples():
        story = stories[row.context]
        ending = row.text.removeprefix(story.context + " ")
        assert ending in story.endings
        assert (ending == story.endings[story.gold]) == bool(row.label)


def test_a_question_shows_the_first_200_characters_of_its_paragraph_or_nothing(tmp_path: Path) -> None:
    path = tiny.squad(tmp_path / "squad.json")
    content = json.loads(path.read_text())
    for number, paragraph in enumerate(content["data"][0]["paragraphs"]):
        paragraph["context"] = f"{number:03d}" + "x" * 500
    path.write_text(json.dumps(content))
    stories = tiny.hellaswag(tmp_path / "hellaswag.jsonl")
    memory = two_domains(path, stories, 80).table.query("group == 'memory'")
    shown = memory.text.str.extract(r"Context: (.*) Answer: ")[0]
    assert shown.str.len().max() == 200
    bare = two_domains(path, stories, 80, with_context=False).table.query("group == 'memory'")
    assert not bare.text.str.contains("Context: ").any()


def test_one_question_of_a_paragraph_and_repeated_contexts_count_once(tmp_path: Path) -> None:
    path, stories = tiny.squad(tmp_path / "s.json", 30, 3), tiny.hellaswag(tmp_path / "h.jsonl", 30)
    content = json.loads(path.read_text())
    content["data"].append(json.loads(json.dumps(content["data"][0])))  # ten paragraphs again
    path.write_text(json.dumps(content))
    with refused("squad") as caught:
        two_domains(path, stories, 120)
    assert caught.value.received == "q0-0"
    for paragraph in content["data"][-1]["paragraphs"]:
        for question in paragraph["qas"]:
            question["id"] += "-again"
    path.write_text(json.dumps(content))
    assert two_domains(path, stories, 120).table.context.nunique() == 60
    with refused("squad") as caught:
        two_domains(path, stories, 140)
    assert caught.value.received == "30 usable contexts in s.json for 35 pairs"
    assert "items=120" in caught.value.remedy


def test_squad_2_leaves_its_unanswerable_questions_out(tmp_path: Path) -> None:
    path = tiny.squad(tmp_path / "s.json", 30, 2)
    content = json.loads(path.read_text())
    content["data"][0]["paragraphs"][0]["qas"][0] |= {"answers": [], "is_impossible": True}
    path.write_text(json.dumps(content))
    questions, impossible = read_squad(path)
    assert (len(questions), impossible) == (59, 1)
    found = two_domains(path, tiny.hellaswag(tmp_path / "h.jsonl"), 80)
    assert "1 SQuAD questions have no answer and were left out" in found.remarks


# --- what is wrong is said --------------------------------------------------------------------------------------------


def _without(content: Any, *path: Any) -> Any:
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return content


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (("data",), ""),
        (("data", 1, "paragraphs"), ": data[1]"),
        (("data", 0, "paragraphs", 3, "context"), ": data[0].paragraphs[3]"),
        (("data", 0, "paragraphs", 3, "qas", 1, "question"), ": data[0].paragraphs[3].qas[1]"),
        (("data", 0, "paragraphs", 3, "qas", 1, "answers"), ": data[0].paragraphs[3].qas[1]"),
        (("data", 0, "paragraphs", 3, "qas", 1, "answers", 0, "text"), ": data[0].paragraphs[3].qas[1].answers[0]"),
    ],
)
def test_a_squad_file_with_a_missing_field_names_the_place(tmp_path: Path, path: tuple[Any, ...], place: str) -> None:
    file = tiny.squad(tmp_path / "s.json")
    file.write_text(json.dumps(_without(json.loads(file.read_text()), *path)))
    with refused(f"s.json{place}") as caught:
        two_domains(file, tiny.hellaswag(tmp_path / "h.jsonl"), 80)
    assert repr(path[-1]) in caught.value.what


@pytest.mark.parametrize(
    "change",
    [
        {"endings": ["a", "b", "c"]},
        {"endings": ["a", "b", "c", " "]},
        {"label": ""},
        {"label": 4},
        {"ctx": None},
    ],
)
def test_a_hellaswag_line_that_is_not_one_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    file = tiny.hellaswag(tmp_path / "h.jsonl")
    lines = file.read_text().splitlines()
    lines[2] = json.dumps({**json.loads(lines[2]), **change})
    file.write_text("\n".join(lines))
    with refused("h.jsonl, line 3") as caught:
        two_domains(tiny.squad(tmp_path / "s.json"), file, 80)
    ((field, value),) = change.items()
    assert repr(field) in caught.value.what
    assert caught.value.received == value


def test_ctx_a_and_ctx_b_are_one_beginning(tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    file.write_text(json.dumps({"ctx_a": "A man sits.", "ctx_b": "he", "endings": ["a", "b", "c", "d"], "label": 2}))
    (story,) = read_hellaswag(file)
    assert (story.context, story.gold) == ("A man sits. he", 2)


@pytest.mark.parametrize(("text", "about"), [("not json", "x.json, line 1"), ("", "hellaswag")])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, text: str, about: str) -> None:
    wrong = tmp_path / "x.json"
    wrong.write_text(text)
    with refused("squad"):
        read_squad(wrong)
    with refused(about):
        read_hellaswag(wrong)
    with refused("squad") as caught:
        read_squad(tmp_path / "absent.json")
    assert caught.value.received == str(tmp_path / "absent.json")


@pytest.mark.parametrize("items", [0, 10, 30, -20])
def test_items_are_a_multiple_of_twenty(files: tuple[Path, Path], items: int) -> None:
    with refused("items"):
        two_domains(*files, items=items)


def test_an_answer_that_every_question_shares_is_refused(tmp_path: Path) -> None:
    file = tiny.squad(tmp_path / "s.json")
    content = json.loads(file.read_text())
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                question["answers"] = [{"text": "the same"}]
    file.write_text(json.dumps(content))
    with refused("squad") as caught:
        two_domains(file, tiny.hellaswag(tmp_path / "h.jsonl"), 80)
    assert caught.value.received == "the same"


# --- a file of one's own ----------------------------------------------------------------------------------------------


def own_table() -> pd.DataFrame:
    rows = [
        {
            "text": f"text {i}",
            "label": ("low", "mid", "high")[i % 3],
            "group": ("a", "b")[i % 2],
            "context": f"c{i // 2}",
        }
        for i in range(120)
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_labelled_file_is_read_in_every_form(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"own.{ending}"
    table = own_table()
    {"csv": lambda: table.to_csv(path, index=False), "parquet": lambda: table.to_parquet(path),
     "jsonl": lambda: table.to_json(path, orient="records", lines=True)}[ending]()  # fmt: skip
    found = read_items(path)
    assert found.classes == ("high", "low", "mid")
    assert found.table.text.tolist() == table.text.tolist()
    assert [found.classes[i] for i in found.table.label] == table.label.tolist()
    assert set(found.table.group) == {"a", "b"}
    assert (found.table.groupby("context").split.nunique() == 1).all()
    assert abs((found.table.split == "test").mean() - 0.2) < 0.05


def test_numbers_stay_class_numbers_and_no_group_is_one_group(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    own_table().drop(columns=["group", "context"]).assign(label=[i % 3 for i in range(120)]).to_csv(path, index=False)
    found = read_items(path)
    assert found.classes == ("0", "1", "2")
    assert set(found.table.group) == {"all"}
    assert set(read_items(path, train=False).table.split) == {"test"}


def test_a_split_of_ones_own_is_kept_and_its_leak_said(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    own_table().assign(split=["test" if i % 5 == 0 else "train" for i in range(120)]).to_csv(path, index=False)
    found = read_items(path)
    assert found.table.split.tolist() == ["test" if i % 5 == 0 else "train" for i in range(120)]
    assert any("both sides" in text for text in found.remarks)


def test_the_same_text_stays_on_one_side(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    pd.concat([own_table().drop(columns="context")] * 2).to_csv(path, index=False)
    found = read_items(path)
    assert (found.table.groupby("text").split.nunique() == 1).all()
    assert found.remarks == ()
    named = own_table().assign(text=[f"text {i // 4}" for i in range(120)])  # one text in two contexts
    named.to_csv(path, index=False)
    both = named.groupby("text").context.nunique().eq(2).sum()
    (said,) = read_items(path).remarks
    assert 0 < int(said.split()[0]) <= both
    assert "texts lie on both sides of the split" in said


def test_contexts_that_are_all_different_are_split_too(tmp_path: Path) -> None:
    """Patients with any number of rows: no two have the same labels, and still a fifth of them is for the test."""
    sizes = [10 + 3 * i for i in range(20)]
    rows = [
        {"text": f"note {i} {j}", "label": (i * j) % 3, "context": i} for i, n in enumerate(sizes) for j in range(n)
    ]
    path = tmp_path / "own.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    table = read_items(path).table
    assert table[table.split == "test"].context.nunique() == 4
    assert (table.groupby("context").split.nunique() == 1).all()


def test_a_class_that_one_side_lacks_is_said(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    table = own_table().drop(columns="context")
    table.assign(split=["test" if label == "mid" else "train" for label in table.label]).to_csv(path, index=False)
    assert read_items(path).remarks == (
        "no item to train on is of class mid",
        "no item to test on is of class high, low",
    )


@pytest.mark.parametrize(
    ("change", "options", "about", "says"),
    [
        (lambda t: t.assign(group=[""] + ["a"] * 119), {}, "row 1 of own.csv", "'group'"),
        (lambda t: t.assign(group=["alone"] + ["a"] * 119), {}, "group", "'alone'"),
        (lambda t: t.assign(group="overall"), {}, "group", "'overall'"),
        (lambda t: t.assign(label="same"), {}, "label_column", "['same']"),
        (lambda t: t.assign(label=range(120)), {}, "label_column", "120 different ones in 120 rows"),
        (lambda t: t.assign(text=["x"] * 119 + [" "]), {}, "row 120 of own.csv", "'text'"),
        (lambda t: t.assign(label=["nan", *t.label[1:]]), {}, "row 1 of own.csv", "'label'"),
        (lambda t: t.assign(split="validation"), {}, "split", "'validation'"),
        (lambda t: t, {"text_column": "txt"}, "text_column", "'txt'"),
        (lambda t: t, {"group_column": "domain"}, "group_column", "'domain'"),
        (lambda t: t.drop(columns="label"), {}, "label_column", "'label'"),
    ],
)
def test_a_labelled_file_that_cannot_be_used_is_refused(
    tmp_path: Path, change: Any, options: dict[str, str], about: str, says: str
) -> None:
    path = tmp_path / "own.csv"
    change(own_table()).to_csv(path, index=False)
    with refused(about) as caught:
        read_items(path, **options)
    assert says in str(caught.value)


# --- the real files ---------------------------------------------------------------------------------------------------


@pytest.mark.skipif("DROPSCOPE_DATA" not in os.environ, reason="DROPSCOPE_DATA is not set: the real files are absent")
def test_the_real_files_give_the_papers_thousand_items() -> None:
    folder = Path(os.environ["DROPSCOPE_DATA"])
    files = folder / "squad/dev-v1.1-half.json", folder / "hellaswag/hellaswag_val_half.jsonl"
    found = two_domains(*files)
    check_contract(found, 1000)
    assert len(found.side("train")) == 800
    assert len(found.side("test")) == 200
    check_contract(two_domains(*files, items=4000), 4000)
