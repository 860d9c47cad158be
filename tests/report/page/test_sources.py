"""What reports say of comparisons, trials, evaluations and studies, and how errors look."""

import itertools
import json

import jsonschema
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib import pyplot
from PIL import Image
from safetensors.numpy import save_file

import dropscope as ds
from dropscope.deploy.evaluation import evaluate_answers
from dropscope.report import Claim, write_claims, write_summary
from dropscope.report.page.pictures import picture_sections
from support.errors import refused
from support.reported_runs import NASTY, SCHEMA, examples, network, small_run


def checked(report):
    """The only chapter, after the twin was held against its schema."""
    jsonschema.validate(json.loads(json.dumps(report.facts(), allow_nan=False)), SCHEMA)
    assert len(report.html()) < 2_000_000
    (chapter,) = report.chapters
    return chapter


def titles(chapter):
    return [section.title for section in chapter.sections]


# --- comparisons, trials, evaluations ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def comparison():
    rivals = {name: name for name in ("max_probability", "entropy", "last=0.2")}
    return ds.compare(network(), examples(), rivals, passes=4, progress=False)


def test_a_comparison_reads_alike_from_its_folder(comparison, tmp_path):
    made = checked(ds.write_report(comparison, out=None))
    read = checked(ds.write_report(comparison.save(tmp_path / "compared"), out=None))
    assert (made.kind, made.title, read.title) == ("comparison", "comparison", "compared")
    assert made.headline == read.headline
    assert [row[0] for row in made.sections[1].items[0].rows] == list(comparison.table.name)
    assert made.numbers["aurc"] == pytest.approx(comparison.table.set_index("name").aurc["max_probability"])
    assert [line.plain for line in made.curves.lines].count(True) == 1


def test_rivals_on_shifted_data_have_a_table_of_their_own(comparison):
    facts = comparison.facts()
    facts["shifted_on"] = 50
    facts["table"] = [row | {"shifted_aurc": 0.5, "shifted_accuracy": 0.5} for row in facts["table"]]
    from dropscope.report.page.comparisons import comparison_chapter

    chapter = comparison_chapter(facts, comparison.examples, "shifted", None)
    assert "On shifted data" in titles(chapter)


def test_a_trial_tells_what_others_judged(tmp_path):
    choice = ds.try_out(network(), examples(), passes=4, budget=5, out=tmp_path / "trial", progress=False)
    made = checked(ds.write_report(choice, out=None))
    read = checked(ds.write_report(tmp_path / "trial", out=None))
    assert (made.kind, made.headline, made.numbers) == ("trial", read.headline, read.numbers)
    assert made.numbers["examples"] == choice.judgement.examples == 120
    assert "<table" in choice._repr_html_()


def evaluation(max_error, wrong):
    labels = np.arange(200) % 2
    predictions = np.where(np.arange(200) < wrong, 1 - labels, labels)
    deferred = np.arange(200) >= 150
    return evaluate_answers(
        labels, predictions, deferred, unit=None, by=None, class_names=["cat", NASTY], max_error=max_error
    )


@pytest.mark.parametrize(("max_error", "wrong", "tone", "ok"), [
    (0.05, 1, "better", True), (0.05, 60, "failed", False), (None, 5, "told", True),
])  # fmt: skip
def test_an_evaluation_holds_a_promise_or_not(max_error, wrong, tone, ok, tmp_path):
    found = evaluation(max_error, wrong)
    made = ds.write_report(found, out=None)
    assert (checked(made).tone, made.ok) == (tone, ok)
    assert NASTY not in made.html()
    (tmp_path / "evaluation.json").write_text(json.dumps(found.facts(), default=float))
    for source in (tmp_path, tmp_path / "evaluation.json"):
        assert ds.write_report(source, out=None).chapters[0].headline == made.chapters[0].headline


def test_other_json_is_refused(tmp_path):
    (tmp_path / "a.json").write_text("[1]")
    with refused("runs"):
        ds.write_report(tmp_path / "a.json", out=None)


# --- studies ----------------------------------------------------------------------------------------------------------


def study(folder, name):
    folder.mkdir()
    (folder / "study.json").write_text(json.dumps({"study": name, "passes": 5}))
    claims = [
        Claim("one", f"It falls {NASTY}", "", "0.1", "supported", "t"),
        Claim("two", "It rises", "", "0.2", "undecided", "t"),
    ]
    answer = ["**Keep one plain pass**: nothing is better.", "Accuracy is 90 %.", "Evidence: 3 networks."]
    write_summary(
        folder, "Where to drop: Net", answer, claims, ["Some details.", "### More\n\n- a\n- b"], ["fewer passes"]
    )
    write_claims(folder, name, "data", claims)
    return folder


def test_a_study_is_told_from_its_summary(tmp_path):
    made = ds.write_report(study(tmp_path / "study", "where-to-drop"), out=None)
    chapter = checked(made)
    assert (chapter.kind, chapter.headline, chapter.tone) == ("where to drop", "Keep one plain pass", "worse")
    assert chapter.sentences == ["Nothing is better.", "Accuracy is 90 %."]
    assert chapter.numbers == {"supported": 1, "contradicted": 0, "equivalent": 0, "undecided": 1}
    assert titles(chapter)[:2] == ["Verdicts", "The run"]
    assert NASTY not in made.html()


def test_a_study_brings_its_figures_and_rows(tmp_path):
    folder = study(tmp_path / "study", "where-to-drop")
    (folder / "figures").mkdir()
    for number in (2, 11):
        Image.new("RGB", (1200, 600), "white").save(folder / "figures" / f"figure-{number}.png")
    ds.sweep(
        network(),
        ["0=0.2"],
        examples(),
        passes=3,
        keep="none",
        out=folder / "sweeps" / "seed-0" / "grid",
        progress=False,
    )
    chapter = checked(ds.write_report(folder, out=None))
    assert [figure.title for figure in chapter.sections[titles(chapter).index("Figures")].items] == [
        "figure 2",
        "figure 11",
    ]
    assert "Every placement" in titles(chapter)


def test_a_profile_has_a_map_of_every_network(tmp_path):
    folder = study(tmp_path / "study", "transformer-profile")
    places = itertools.product(("a", "b"), range(2), ("attention", "ffn"), ("memory", "reasoning"))
    rows = pd.DataFrame(places, columns=["model", "layer", "component", "group"])
    rows = rows.assign(rate=0.6, accuracy=0.5 + rows.layer / 10, deterministic_accuracy=0.7)
    rows.to_parquet(folder / "sensitivity.parquet")
    chapter = checked(ds.write_report(folder, out=None))
    first, _ = chapter.sections[1].items
    assert [node.name for node in first.sites] == [
        "layer 0 attention",
        "layer 0 ffn",
        "layer 1 attention",
        "layer 1 ffn",
    ]
    assert first.values["accuracy"][2] == pytest.approx([-0.1, -0.1])


def test_a_segmentation_has_volumes_to_look_through(tmp_path):
    folder = study(tmp_path / "study", "segmentation-measures")
    label = np.zeros((8, 6, 4), np.uint8)
    label[2:5, 2:4, 3] = 1
    image = np.random.default_rng(0).random((2, 8, 6, 4), np.float32)
    tensors = {"image": image, "label": label, "prediction": 0 * label, "averaged_entropy": label.astype(np.float32)}
    save_file({f"0/{name}": values for name, values in tensors.items()}, folder / "exhibits.safetensors")
    chapter = checked(ds.write_report(folder, out=None))
    (view,) = chapter.sections[titles(chapter).index("Look through the volumes")].items
    assert (view.shape, view.start, view.overlays) == ([8, 6, 4], 3, ["averaged_entropy"])
    assert {layer.packed.bytes for layer in view.layers} == {8 * 6 * 4}


def test_predicted_volumes_are_listed_and_looked_through(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    folder = tmp_path / "maps"
    (folder / "b").mkdir(parents=True)
    values = np.zeros((6, 8, 5), np.float32)
    values[2:4, 3:5, 4] = 1
    for name in ("b/prediction", "b/predictive_entropy", "../scan"):
        nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), folder / f"{name}.nii.gz")
    rows = pd.DataFrame(
        {"case": ["b", "a", "c", "d"], "uncertainty": [0.9, 0.5, 0.4, 0.1], "dice": [0.2, 0.5, 0.6, 0.9]}
    )
    rows.assign(image="elsewhere/scan.nii.gz").to_csv(folder / "cases.csv", index=False)
    for data in (None, tmp_path):
        chapter = checked(ds.write_report(folder, out=None, data=data))
        (view,) = chapter.sections[0].items
        assert (view.title, view.start, view.overlays, view.labelled) == ("b", 4, ["predictive_entropy"], False)
    assert "−1.00" in chapter.sentences[1]
    assert chapter.numbers == {"cases": 4.0, "dice": pytest.approx(0.55)}


# --- pictures ---------------------------------------------------------------------------------------------------------


def ranking(ids, wrong=(0, 3)):
    correct = np.ones(len(ids), bool)
    correct[list(wrong)] = False
    return pd.DataFrame({"id": ids, "uncertainty": np.linspace(1, 0, len(ids)), "correct": correct})


def test_errors_in_an_image_folder_are_shown(tmp_path):
    (tmp_path / "cat").mkdir()
    ids = [f"cat/{number}.png" for number in range(10)]
    for name in ids:
        Image.new("RGB", (200, 100), "red").save(tmp_path / name)
    (section,) = picture_sections(ranking(ids), tmp_path)
    (gallery,) = section.items
    assert [(one.said, one.rank) for one in gallery.examples] == [("cat", 0.0), ("cat", 0.3)]
    assert all(one.image.startswith("data:image/jpeg;base64,") for one in gallery.examples)
    assert gallery.ranks == [0.0, 0.3]


def test_a_name_that_leads_out_of_the_folder_shows_nothing(tmp_path):
    (tmp_path / "inside").mkdir()
    for name in ("outside.png", "inside/a.png"):
        Image.new("RGB", (10, 10)).save(tmp_path / name)
    (section,) = picture_sections(ranking(["../outside.png", "a.png", "b.png", "a.png"]), tmp_path / "inside")
    assert [one.image is None for one in section.items[0].examples] == [True, False]


def test_errors_in_arrays_and_texts_are_shown():
    inputs = torch.rand(5, 1, 12, 12)
    (section,) = picture_sections(ranking([str(number) for number in range(5)]), (inputs, None))
    assert all(one.small for one in section.items[0].examples)
    table = ranking(["a good film", "a bad film", "it was late", NASTY + " and so on"]).assign(label=1, prediction=0)
    (section,) = picture_sections(table, None)
    assert section.items[0].texts
    assert section.items[0].examples[0].said == "1, taken for 0"


def test_data_of_other_examples_is_refused(tmp_path):
    table = ranking(["a.png", "b.png", "c.png", "d.png"])
    for data in (tmp_path / "none", tmp_path, torch.rand(3, 1, 8, 8), torch.rand(4, 8)):
        with refused("data"):
            picture_sections(table, data)


def test_without_errors_or_pictures_there_is_no_section():
    assert picture_sections(ranking(["a", "b"], wrong=()), None) == []
    assert picture_sections(ranking(["0", "1", "2", "3"]), None) == []


# --- notebooks --------------------------------------------------------------------------------------------------------


def test_a_run_displays_its_report_in_a_frame():
    shown = small_run()._repr_html_()
    assert shown.index("<table") < shown.index("<iframe sandbox=")
    assert "<script" not in shown


def test_a_plot_is_called():
    axes = small_run().plot(count=2)
    assert len(axes.get_lines()) == 3
    pyplot.close(axes.figure)
