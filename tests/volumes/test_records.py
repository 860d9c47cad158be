"""Folders of predictions that were left in the middle, damaged, or made otherwise."""

import json

import pandas as pd
import pytest

from dropscope.volumes import prediction
from dropscope.volumes.prediction import predict
from dropscope.volumes.records import remove_case
from support.errors import refused
from support.nifti_files import PLACEMENT, maps_in, net, write

nibabel = pytest.importorskip("nibabel", reason="NIfTI needs the extra 'medical'")

FEW = {"passes": 3, "overlays": False, "progress": False}


@pytest.fixture
def folder(tmp_path):
    """A finished folder of two cases, and what to call to take it up again."""
    sources = [write(tmp_path / f"{name}.nii.gz", (6, 5, 4), seed=i) for i, name in enumerate("ab")]
    out = tmp_path / "out"

    def again(model=None, placement=PLACEMENT, **changes):
        return predict(model or net(), placement, sources, out, **(FEW | changes))

    return out, again(), again


def edited(change):
    def damage(case):
        record = json.loads((case / "case.json").read_text())
        change(record)
        (case / "case.json").write_text(json.dumps(record))

    return damage


def flip(case):
    path = case / "averaged_variance.nii.gz"
    there = bytearray(path.read_bytes())
    there[len(there) // 2] ^= 1
    path.write_bytes(bytes(there))


DAMAGE = {
    "truncated": lambda case: (case / "case.json").write_text((case / "case.json").read_text()[:200]),
    "empty": lambda case: (case / "case.json").write_text(""),
    "binary": lambda case: (case / "case.json").write_bytes(b"\xff\xfe\x00"),
    "nested": lambda case: (case / "case.json").write_text("[" * 100_000),
    "no map": lambda case: (case / "predictive_entropy.nii.gz").unlink(),
    "a flipped byte": flip,
    "a cut map": lambda case: (case / "prediction.nii.gz").write_bytes(b"\x1f\x8b"),
    "spec is a list": edited(lambda record: record.update(spec=[1])),
    "no findings": edited(lambda record: record.pop("found")),
    "findings are text": edited(lambda record: record.update(found="many")),
    "a number is text": edited(lambda record: record["found"].update(uncertainty="high")),
    "a list is short": edited(lambda record: record["found"]["millilitres"].pop()),
    "maps are a list": edited(lambda record: record["found"].update(maps=[])),
    "a volume is null": edited(lambda record: record["found"].update(foreground=[None] * 3)),
    "a map is a number": edited(lambda record: record["found"]["maps"].update(averaged_variance=3)),
    "no digests": edited(lambda record: record.pop("files")),
}


@pytest.mark.parametrize("kind", list(DAMAGE))
def test_a_damaged_case_is_predicted_again_and_that_is_said(folder, kind, monkeypatch):
    out, before, again = folder
    maps = maps_in(out / "a")
    DAMAGE[kind](out / "a")
    ran = []
    real = prediction.predict_volume
    monkeypatch.setattr(prediction, "predict_volume", lambda *given: ran.append(1) or real(*given))
    table = again()
    assert len(ran) == 1
    pd.testing.assert_frame_equal(table, before)
    (remark,) = table.attrs["remarks"]
    assert remark.startswith("a is predicted again")
    for name, values in maps_in(out / "a").items():
        assert (values == maps[name]).all()
    assert again().attrs["remarks"] == ()


@pytest.mark.parametrize("content", ['{"case": 1}', "[]", "3", '"text"', "null"])
def test_a_foreign_record_is_refused(folder, content):
    out, _, again = folder
    (out / "a" / "case.json").write_text(content)
    with refused("out"):
        again()
    assert len(again(overwrite=True)) == 2


def test_another_model_or_placement_is_refused(folder):
    out, _, again = folder
    for changes, field in (({"model": net(seed=1)}, "weights"), ({"placement": "0=0.2"}, "placement")):
        with refused("out") as caught:
            again(**changes)
        assert field in caught.value.received
        assert str(out / "a" / "case.json") in str(caught.value)


def test_overwriting_replaces_what_was_there(folder):
    out, before, again = folder
    (out / "a" / "notes.txt").write_text("mine")
    other = again(placement="0=0.2", overwrite=True, measures=["bald"])
    assert other.uncertainty.tolist() != before.uncertainty.tolist()
    assert {path.name for path in (out / "a").iterdir()} == {
        "prediction.nii.gz", "mean_probability.nii.gz", "bald.nii.gz", "case.json", "notes.txt",
    }  # fmt: skip


def test_a_file_in_the_way_is_named(tmp_path):
    source = write(tmp_path / "a.nii.gz", (6, 5, 4))
    (tmp_path / "file").write_text("")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").write_text("")
    (tmp_path / "folders" / "a" / "case.json").mkdir(parents=True)
    (tmp_path / "more" / "a" / "prediction.nii.gz").mkdir(parents=True)
    for out in ("file", "file/below", "out", "folders", "more"):
        with refused("out"):
            predict(net(), PLACEMENT, [source], tmp_path / out, **FEW)


def test_a_record_that_lists_odd_names_removes_no_more_than_its_files(tmp_path):
    names = ["map.nii.gz", "x" * 300, "", ".", "..", "../outside", "a\0b"]
    for name in ("map.nii.gz", "other.txt"):
        (tmp_path / name).write_text("x")
    (tmp_path / "case.json").write_text(json.dumps({"files": dict.fromkeys(names)}))
    remove_case(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["other.txt"]
