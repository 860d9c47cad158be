"""Reports as files: self-contained, escaped, small; the twin, the gates, and what is refused."""

import base64
import json
import re
import zlib
from xml.etree import ElementTree

import jsonschema
import numpy as np
import pytest

import dropscope as ds
from dropscope.report.page.markup import prose, read_table, rich
from dropscope.report.page.placements import explorer_of, network_of, terms_of
from support.errors import refused
from support.reported_runs import NASTY, SCHEMA, large_run, small_run, stored_run


def bytes_of(packed):
    return zlib.decompress(base64.b64decode(packed.data))


def values_of(column):
    planes = np.frombuffer(bytes_of(column.packed), np.uint8).astype(int)
    codes = planes[: len(planes) // 2] * 256 + planes[len(planes) // 2 :]
    return np.where(codes == 65535, np.nan, column.low + codes * (column.high - column.low) / 65534)


def test_a_page_is_one_file_that_needs_no_network(tmp_path):
    made = ds.write_report(small_run(), out=tmp_path / "run.html")
    page = made.path.read_text(encoding="utf-8")
    assert page == made.html()
    assert not re.search(r"(src|href)=\"(?!#|data:)", page)
    assert "default-src 'none'" in page
    assert len(page.encode()) < 200_000


def test_a_page_tells_the_verdict_of_the_run():
    run = small_run()
    chapter = ds.write_report(run, out=None).chapters[0]
    assert chapter.tone == {"better": "better", "worse": "worse", "undecided": "worse"}[run.verdict.word]
    assert chapter.numbers["difference"] == run.verdict.difference
    assert len(chapter.sentences) == 2
    assert [row[0] for row in chapter.operating.rows] == ["2 %", "5 %", "10 %", "20 %", "30 %", "50 %"]


def test_names_cannot_leave_the_page_they_stand_in(tmp_path):
    made = ds.write_report(stored_run(tmp_path / "run"), out=None, title=NASTY)
    assert NASTY not in made.html()
    assert "&lt;script&gt;" in made.html()
    assert rich(f"**{NASTY}** `{NASTY}`").count("<script>") == 0
    assert "<script>" not in prose(f"# {NASTY}\n\n- {NASTY}\n\n| {NASTY} |\n|---|\n| {NASTY} |")


def test_a_page_in_a_notebook_is_in_a_frame_of_its_own():
    shown = ds.write_report(small_run(), out=None)._repr_html_()
    assert shown.startswith("<iframe sandbox=")
    assert "<script" not in shown


def test_the_twin_fits_its_schema(tmp_path):
    made = ds.write_report(small_run(), stored_run(tmp_path / "run"), out=None, require=["accuracy>0"])
    twin = json.loads(json.dumps(made.facts(), allow_nan=False))
    jsonschema.validate(twin, SCHEMA)
    assert [chapter["title"] for chapter in twin["chapters"]] == ["sweep", "run"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(twin | {"chapters": []}, SCHEMA)


def test_requirements_are_gates():
    passed = ds.write_report(small_run(), out=None, require=["accuracy>=0.5", "examples >= 240"])
    failed = ds.write_report(small_run(), out=None, require=["accuracy>0.99"])
    assert passed.ok
    assert not failed.ok
    suite = ElementTree.fromstring(failed.junit())[0]
    assert suite.get("failures") == "1"
    assert {case.get("name"): len(case) for case in suite}["accuracy > 0.99"] == 1


@pytest.mark.parametrize("text", ["accuracy", "accuracy=1", "accuracy>=high", "accuracy>=1e", ""])
def test_a_requirement_that_cannot_be_read_is_refused(text):
    with refused("require"):
        ds.write_report(small_run(), out=None, require=[text])


def test_what_is_no_run_is_refused(tmp_path):
    for given in ((), (3,), (tmp_path / "none",), (tmp_path,)):
        with refused("runs"):
            ds.write_report(*given, out=None)
    with refused("require"):
        ds.write_report(small_run(), out=None, require=["acuracy>0.5"])
    with refused("out"):
        ds.write_report(small_run(), out=tmp_path / "page.pdf")


def test_a_run_without_examples_or_aurc_has_a_page():
    for options in ({"keep": "none"}, {"scores": ("ece",), "objective": "ece"}):
        chapter = ds.write_report(small_run(**options), out=None).chapters[0]
        assert chapter.tone == "told"
        assert chapter.operating is None


def test_every_row_is_in_the_page():
    run = small_run()
    packed = explorer_of(run)
    assert bytes_of(packed.placements).decode().split("\n") == list(run.rows.placement.unique())
    columns = {column.name: column for column in packed.columns}
    assert columns["accuracy"].per == "placement"
    reached = values_of(columns["aurc"])
    assert np.allclose(reached, run.rows.aurc, atol=(run.rows.aurc.max() - run.rows.aurc.min()) / 65534)
    assert columns["aurc_minus_single_pass"].packed.data == ""  # the same codes as those of the AURC
    assert packed.plain["aurc"] == run.baseline.set_index("measure").aurc["plain_entropy"]


def test_an_explorer_of_fewer_rows_has_the_best():
    run = small_run()
    (text,) = bytes_of(explorer_of(run, 5).placements).decode().split("\n")
    assert text == run.best("aurc", 1).placement.iloc[0]


def test_ten_thousand_placements_fit():
    run = large_run()
    assert len(run.rows) == 9_999 * 5
    assert len(ds.write_report(run, out=None).html().encode()) < 1_300_000


def test_sites_stand_in_the_order_of_the_network():
    found = terms_of(["layer11=0.1", "layer2=0.3,layer11=0.1", "own", "fc@output=0.3"], ["layer2", "fc"])
    assert found.sites == ["layer2", "fc@output", "layer11"]
    assert found.matrix.tolist() == [[0, 0, 1], [2, 0, 1], [0, 0, 0], [0, 2, 0]]


def test_the_heat_map_has_means_over_placements():
    run = small_run()
    chart = network_of(run)[0].items[0]
    rows = run.rows[(run.rows.measure == "bald") & run.rows.placement.str.contains("2=0.5")]
    assert [node.kind for node in chart.sites] == ["linear", "linear"]
    assert chart.columns == ["0.2", "0.5"]
    assert chart.values["bald"][1][1] == pytest.approx(rows.aurc_minus_single_pass.mean())
    assert chart.values["bald"][1][0] is None


def test_markdown_tables_are_read():
    found = read_table(["| a | b \\| c |", "|---|---|", "| x | 0.5 |", "| 3 | – |"])
    assert (found.columns, found.rows, found.names) == (["a", "b | c"], [["x", "0.5"], ["3", "–"]], 1)


def test_a_run_keeps_its_sites_and_audit(tmp_path):
    opened = ds.open_run(stored_run(tmp_path / "run"))
    assert [site["name"] for site in opened.origin["sites"]] == ["0", "1", "2", "3", "4"]
    assert {each["site"].partition("@")[0] for each in opened.origin["findings"]} == {"0", "2"}
    assert ds.write_report(opened, out=None).chapters[0].sections[0].title == "Audit"
