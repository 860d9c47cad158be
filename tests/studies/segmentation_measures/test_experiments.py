"""The grid of networks: units that are kept and resumed, workers that change nothing, other networks, the study."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from dropscope.cli import app
from dropscope.report import read_claims
from dropscope.report.summaries import Summary, verdict_table
from dropscope.studies.segmentation_measures import study, units, workers
from dropscope.studies.segmentation_measures.estimates import worker_bytes
from dropscope.studies.segmentation_measures.experiments import Experiment, make_grid, plan_networks
from dropscope.studies.segmentation_measures.options import Options
from dropscope.studies.segmentation_measures.presets import PRESETS, Phantoms, Preset, Regime
from dropscope.studies.segmentation_measures.report import write_report
from dropscope.studies.segmentation_measures.showcase import EXHIBITS, read_exhibits
from dropscope.studies.segmentation_measures.study import Plan, plan, run, trained_network
from support.errors import refused
from support.small_volumes import decathlon_folder, save

TINY: dict[str, Any] = {
    "steps": 3, "validations": 1, "batch": 1, "features": (2, 4), "passes": 3, "device": "cpu", "workers": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def tiny_phantoms(monkeypatch: pytest.MonkeyPatch) -> None:
    regime = Regime(epochs=None, steps=3, validations=1, batch=1)
    smaller = Preset(
        n_train=(1, 2), rates=(0.3,), regime=regime, passes=3, features=(2, 4), n_validation=1, n_test=3,
        phantoms=Phantoms((2, 1, 3), (16, 16, 4), (1.8, 1.8, 6.0)),
    )  # fmt: skip
    monkeypatch.setitem(PRESETS, "smoke", smaller)


@pytest.fixture
def unreported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows alone: drawing takes longer than networks of this size."""
    monkeypatch.setattr(study, "make_exhibits", lambda *_: None)
    monkeypatch.setattr(study, "write_report", lambda *_: (Summary((), (), verdict_table(())), {}))


def tiny(out: Path, data: str = "phantom", **changes: Any) -> Plan:
    return plan(Options(data, "smoke", out, **(TINY | changes)), show=False)


# --- the grid ---------------------------------------------------------------------------------------------------------


def test_the_papers_grid_has_144_networks() -> None:
    p = PRESETS["paper"]
    networks = plan_networks(make_grid(p.n_train, p.rates, p.noises), "training")
    assert len(networks) == len({n.name for n in networks}) == 144
    assert (p.passes, p.regime.epochs, p.regime.batch, p.features) == (50, 600, 1, (16, 32, 64, 128))
    assert p.phantoms == Phantoms((69, 24, 52), (128, 128, 16), (0.30, 0.30, 2.0))


def test_small_is_at_least_24_networks() -> None:
    p = PRESETS["small"]
    assert len(make_grid(p.n_train, p.rates, p.noises)) == 24


def test_dropout_at_inference_only_needs_a_network_per_training_set() -> None:
    networks = plan_networks(make_grid([5, 9], [0.1, 0.3], ["bernoulli", "gaussian"]), "inference")
    assert [(n.name, n.rate, len(n.experiments)) for n in networks] == [("n005-plain", 0.0, 4), ("n009-plain", 0.0, 4)]


@pytest.mark.parametrize(
    ("axes", "name"),
    [
        (([], [0.1], ["gaussian"]), "n_train"),
        (([5, 5], [0.1], ["gaussian"]), "n_train"),
        (([5], [1.0], ["gaussian"]), "rates"),
        (([5], [0.0], ["gaussian"]), "rates"),
        (([5], [0.1], ["gausian"]), "noises"),
    ],
)
def test_a_grid_that_is_none(axes: tuple[Any, Any, Any], name: str) -> None:
    with refused(name):
        make_grid(*axes)


def test_memory_of_a_worker_grows_with_the_batch() -> None:
    one, four = (worker_bytes((128, 128, 16), 3, Regime(batch=b), (16, 32), torch.device("cpu")) for b in (1, 32))
    assert four > one


# --- units ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unreported")
def test_a_study_killed_between_units_goes_on_and_ends_with_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(tiny(tmp_path / "whole"), show=False).rows
    done: list[str] = []
    really = workers.run_unit

    def dying(work: Any, network: Any, *rest: Any, **named: Any) -> str:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(network.name)
        return really(work, network, *rest, **named)

    monkeypatch.setattr(workers, "run_unit", dying)
    with pytest.raises(KeyboardInterrupt):
        run(tiny(tmp_path / "killed"), show=False)
    there = sorted(path.name for path in (tmp_path / "killed" / "rows").iterdir())
    assert len(there) == 2
    again: list[str] = []

    def counting(work: Any, network: Any, *rest: Any, **named: Any) -> str:
        again.append(network.name)
        return really(work, network, *rest, **named)

    monkeypatch.setattr(workers, "run_unit", counting)
    resumed = run(tiny(tmp_path / "killed"), show=False).rows
    assert len(again) == 2
    assert not set(again) & set(done)
    pd.testing.assert_frame_equal(resumed, whole)


@pytest.mark.usefixtures("unreported")
def test_a_network_that_is_there_is_not_trained_again_and_a_finished_study_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = tiny(tmp_path)
    rows = run(planned, show=False).rows
    os.remove(planned.work.rows_file(planned.experiments[0]))
    monkeypatch.setattr(units, "train", lambda *_: pytest.fail("trained again"))
    pd.testing.assert_frame_equal(run(planned, show=False).rows, rows)
    monkeypatch.setattr(units, "evaluate", lambda *_: pytest.fail("evaluated again"))
    pd.testing.assert_frame_equal(run(tiny(tmp_path), show=False).rows, rows)


@pytest.mark.usefixtures("unreported")
@pytest.mark.slow
def test_workers_change_no_row_and_every_step_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, int, list[int]]] = []

    @contextmanager
    def track(what: str, total: int, unit: str, show: bool | None) -> Iterator[Any]:
        shown.append((what, total, []))
        yield shown[-1][2].append

    monkeypatch.setattr(workers, "track", track)
    one = run(tiny(tmp_path / "one", n_train=[2]), show=False).rows
    two = run(tiny(tmp_path / "two", n_train=[2], workers=2), show=False).rows
    pd.testing.assert_frame_equal(one, two)
    for what, total, ticks in shown:
        # 3 steps of training and 3 passes of 1 validation and 3 test cases, for Bernoulli and Gaussian noise
        assert (what, total, sum(ticks)) == ("2 networks", 2 * (3 + 3 * 4), total)
    (tmp_path / "one" / "rows" / "n002-gaussian-0.3.parquet").unlink()
    run(tiny(tmp_path / "one", n_train=[2]), show=False)
    assert (shown[-1][0], shown[-1][1], sum(shown[-1][2])) == ("1 networks", 12, 12)


def test_units_have_the_same_threads_whatever_the_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    assert {tiny(tmp_path / "out", workers=n).work.threads for n in (1, 2, 4)} == {8}


def test_workers_leave_with_the_process_that_started_them(tmp_path: Path) -> None:
    """Its parent is killed: a worker that went on would train beside the next run."""
    code = "import os, sys, threading, time\n"
    code += "from dropscope.studies.segmentation_measures.workers import _exit_with_parent\n"
    code += "threading.Thread(target=_exit_with_parent, args=(os.getppid(), 0.05), daemon=True).start()\n"
    code += "open(sys.argv[1], 'w').write(str(os.getpid()))\ntime.sleep(60)\n"
    mark = tmp_path / "pid"
    parent = "import subprocess, sys, time\n"
    parent += f"subprocess.Popen([sys.executable, '-c', {code!r}, {str(mark)!r}])\ntime.sleep(60)\n"
    starter = subprocess.Popen([sys.executable, "-c", parent])
    try:
        assert _until(lambda: mark.exists() and mark.read_text() != "", 50)
        worker = int(mark.read_text())
    finally:
        starter.kill()
        starter.wait()
    assert _until(lambda: not _alive(worker), 20)


def _until(true: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return true()


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.usefixtures("unreported")
def test_a_folder_may_grow_but_holds_one_study(tmp_path: Path) -> None:
    run(tiny(tmp_path, n_train=[1], noises=["gaussian"]), show=False)
    more = run(tiny(tmp_path, n_train=[1, 2], noises=["gaussian"]), show=False)
    assert more.rows.experiment.unique().tolist() == ["n001-gaussian-0.3", "n002-gaussian-0.3"]
    with refused("out") as caught:
        run(tiny(tmp_path, passes=4), show=False)
    assert "passes" in str(caught.value.received)
    with refused("out"):
        tiny(tmp_path, seed=1)


def test_the_whole_study_leaves_tables_figures_and_a_summary(tmp_path: Path) -> None:
    outcome = run(tiny(tmp_path), show=False)
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert {f"figure{f}.{e}" for f in ("1_maps", "3_dice", "4_auprc", "5_posteriors") for e in ("png", "pdf")} <= names
    tables = ("experiments", "measures", "posteriors", "pairs", "bootstrap", "floors", "cases", "claims")
    assert {f"{table}.{ending}" for table in tables for ending in ("csv", "md", "tex")} <= names
    summary = (tmp_path / "summary.md").read_text()
    assert "networks: 4 instead of 144" in summary
    assert "training: 3 steps of batch 1" in summary
    assert "generated" in summary
    foreground = ["dice_1", "dice_2"]
    rows = outcome.rows.assign(**{name: np.where(outcome.rows.n_train == 1, 0.01, 0.9) for name in foreground})
    exhibits = read_exhibits(tmp_path / EXHIBITS)
    _, beside = write_report(tmp_path, rows, exhibits, tiny(tmp_path).facts())
    assert len(beside["experiments"]) == 4
    assert set(beside["posteriors_without_failures"].experiments) == {2}
    assert "| without networks that failed |" in (tmp_path / "summary.md").read_text()
    for claim in outcome.claims:
        assert claim.statement in summary
    assert len(outcome.tables["posteriors"]) == 12
    net, placement = trained_network(tmp_path)
    best = min(tmp_path.glob("networks/*.json"), key=lambda p: -max(json.loads(p.read_text())["scores"]))
    weights = load_file(best.with_suffix(".safetensors"))
    assert all(torch.equal(value, weights[name]) for name, value in net.state_dict().items())
    assert placement == f"dropout=0.3 noise={best.stem.split('-')[1]}"
    with refused("experiment"):
        trained_network(tmp_path, "n009-gaussian-0.3")
    with refused("folder"):
        trained_network(tmp_path / "none")
    assert not list(tmp_path.rglob(".part-*"))


# --- data and networks of the user's ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n_test", [1, 2])
def test_few_test_cases_are_shown_once_each(tmp_path: Path, n_test: int) -> None:
    run(tiny(tmp_path / "out", n_train=[1], n_test=n_test), show=False)
    cases = read_exhibits(tmp_path / "out" / EXHIBITS).about["cases"]
    assert [case["quality"] for case in cases] == ["worst", "best"][:n_test]
    assert len({case["case"] for case in cases}) == n_test


def test_as_many_classes_as_there_are(tmp_path: Path) -> None:
    folder = decathlon_folder(tmp_path / "many", 4, (16, 16, 4))
    for path in (folder / "labelsTr").iterdir():
        label = np.zeros((16, 16, 4), np.uint8)
        label[:10, :10] = np.arange(100).reshape(10, 10, 1) % 10
        save(path, label)
    done = run(tiny(tmp_path / "out", str(folder), n_train=[1], n_test=2, n_validation=1), show=False)
    assert {f"dice_{c}" for c in range(10)} <= set(done.rows.columns)
    assert (tmp_path / "out" / "figures" / "figure1_maps.png").exists()


def test_a_study_without_a_single_error_says_so(tmp_path: Path) -> None:
    rows = run(tiny(tmp_path / "out", n_train=[1]), show=False).rows
    with refused("data"):
        write_report(tmp_path, rows.assign(errors=0), None, {})  # type: ignore[arg-type]


@pytest.mark.usefixtures("unreported")
def test_a_decathlon_folder_and_the_file_it_is_prepared_into(tmp_path: Path) -> None:
    pytest.importorskip("nibabel")
    data = decathlon_folder(tmp_path / "data", cases=6)
    planned = tiny(tmp_path / "a", str(data), noises=["gaussian"], n_train=[2])
    assert (planned.prepared.roi, planned.facts()["cases"]) == ((10, 12, 6), [2, 1, 3])
    first = run(planned, show=False).rows
    prepared = str(tmp_path / "a" / "prepared.safetensors")
    again = run(tiny(tmp_path / "b", prepared, noises=["gaussian"], n_train=[2]), show=False).rows
    pd.testing.assert_frame_equal(first, again)


def test_more_training_patients_than_the_data_has(tmp_path: Path) -> None:
    with refused("n_train") as caught:
        tiny(tmp_path, n_train=[2, 5])
    assert caught.value.received == 5
    assert not list(tmp_path.iterdir())


def test_sizes_of_a_preset_that_the_data_cannot_fill_are_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRESETS, "smoke", replace(PRESETS["smoke"], n_train=(1, 2, 50)))
    planned = tiny(tmp_path)
    assert planned.preset.n_train == (1, 2)
    assert any("50 left out" in remark for remark in planned.remarks)


MODEL = """
from torch import nn

def with_dropout():
    return nn.Sequential(nn.Conv3d(5, 4, 3, padding=1), nn.ReLU(), nn.Dropout(0.1), nn.Conv3d(4, 3, 1))

def without():
    return nn.Sequential(nn.Conv3d(5, 4, 3, padding=1), nn.ReLU(), nn.Conv3d(4, 3, 1))

def two_classes():
    return nn.Sequential(nn.Conv3d(5, 2, 1), nn.Dropout(0.1))

class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.dropout, self.last = nn.Conv3d(5, 4, 1), nn.Dropout(0.1), nn.Conv3d(4, 3, 1)
        self.again = self.last  # one module under two names

    def forward(self, x):
        return self.last(self.dropout(self.first(x)))

class Tokens(Named):
    def forward(self, x):
        y = self.first(x)
        tokens = self.dropout(y.flatten(2).transpose(1, 2))
        return self.last(tokens.transpose(1, 2).reshape(y.shape))

class Deep(Named):
    def forward(self, x):
        y = super().forward(x)
        return [y, y] if self.training else y
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MODEL)
    return str(tmp_path / "mine.py")


@pytest.mark.usefixtures("unreported")
def test_another_network_with_dropout_of_its_own(tmp_path: Path, model: str) -> None:
    planned = tiny(tmp_path / "out", model=f"{model}:with_dropout", n_train=[1], noises=["gaussian"])
    net = planned.work.build_for(planned.units[0], planned.prepared)
    assert type(net[2]).__name__ == "GaussianFeatureDropout"  # type: ignore[index]
    assert len(run(planned, show=False).rows) > 0


@pytest.mark.usefixtures("unreported")
def test_a_network_whose_dropout_is_called_so_and_whose_layers_have_two_names(tmp_path: Path, model: str) -> None:
    planned = tiny(tmp_path / "out", model=f"{model}:Named", n_train=[1], noises=["bernoulli"])
    assert planned.work.placement_of(Experiment(1, 0.3, "bernoulli")) == "dropout@output=0.3 noise=bernoulli"
    assert len(run(planned, show=False).rows) > 0
    weights = load_file(tmp_path / "out" / "networks" / "n001-bernoulli-0.3.safetensors")
    assert torch.equal(weights["again.weight"], weights["last.weight"])


@pytest.mark.usefixtures("unreported")
def test_dropout_at_inference_only_puts_noise_after_every_layer(tmp_path: Path, model: str) -> None:
    planned = tiny(tmp_path / "out", model=f"{model}:without", dropout="inference", n_train=[1])
    rows = run(planned, show=False).rows
    assert rows.experiment.nunique() == 2
    assert [path.name for path in (tmp_path / "out" / "networks").glob("*.safetensors")] == ["n001-plain.safetensors"]
    assert planned.work.placement_of(Experiment(1, 0.3, "gaussian")) == "all=0.3 noise=gaussian"


def test_networks_and_placements_that_do_not_fit_are_refused_before_any_training(tmp_path: Path, model: str) -> None:
    for name, value, received in (
        ("model", f"{model}:without", "Sequential without any"),
        ("model", f"{model}:two_classes", "(1, 2, 16, 16, 4)"),
        ("model", f"{model}:Tokens", "tokens at dropout"),
        ("model", f"{model}:Deep", "not a tensor"),
        ("placement", "dropout={speed}", "speed"),
        ("placement", "nowhere={rate}", "nowhere"),
        ("dropout", "sometimes", "sometimes"),
        ("device", "cuda" if not torch.cuda.is_available() else "meta", ""),
        ("workers", 0, "0"),
        ("roi", (15, 16, 4), "15"),
    ):
        with refused(name) as caught:
            tiny(tmp_path / "out", **{name: value})
        assert received in str(caught.value.received)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("unreported")
def test_a_monai_network(tmp_path: Path) -> None:
    pytest.importorskip("monai")
    (tmp_path / "monai_net.py").write_text(
        "from monai.networks.nets import UNet\n"
        "def net():\n"
        "    return UNet(3, 5, 3, channels=(4, 8), strides=(2,), num_res_units=0, dropout=0.1)\n"
    )
    planned = tiny(tmp_path / "out", model=f"{tmp_path / 'monai_net.py'}:net", n_train=[1], noises=["bernoulli"])
    assert len(run(planned, show=False).rows) > 0


# --- command line -----------------------------------------------------------------------------------------------------


def test_dry_run_says_what_would_be_done_and_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = ["study", "segmentation-measures", "--preset", "smoke", "--device", "cpu", "--out", str(out), "--dry-run"]
    said = CliRunner().invoke(app, [*asked, "--json"])
    facts = json.loads(said.stdout)
    assert (facts["networks"], facts["training_steps"], facts["test_forwards"]) == (4, 12, 4 * 3 * 3)
    assert facts["estimate"]["seconds"] > 0
    shown = CliRunner().invoke(app, asked)
    assert "networks: 4" in shown.stdout
    assert "estimate: about" in shown.stdout
    assert not out.exists()


def test_the_command_runs_and_prints_json(tmp_path: Path) -> None:
    asked = ["--preset", "smoke", "--n-train", "1", "--noise", "gaussian", "--rates", "0.2,0.4", "--device", "cpu"]
    asked += ["--out", str(tmp_path / "o"), "--preregister", str(tmp_path / "plan.json"), "--json"]
    registered = CliRunner().invoke(app, ["study", "segmentation-measures", *asked])
    assert registered.exit_code == 0, registered.output
    assert not (tmp_path / "o").exists()
    said = CliRunner().invoke(app, ["study", "segmentation-measures", *asked])
    assert said.exit_code == 0, said.output
    answer = json.loads(said.stdout)
    assert len(answer["claims"]) == 8
    assert {row["measure"] for row in answer["measures"]} >= {"averaged variance", "Kullback-Leibler"}
    summary = (tmp_path / "o" / "summary.md").read_text()
    assert json.loads(registered.stdout)["hash"] in summary
    assert "not as registered" not in summary
    assert read_claims(tmp_path / "o").study == "segmentation-measures"


@pytest.mark.parametrize(
    "wrong",
    [
        ["--preset", "large"], ["--n-train", "x"], ["--rates", "x"], ["--noise", "pink"],
        ["--epochs", "2", "--steps", "2"], ["--data", "nowhere"], ["--roi", "8"], ["--passes", "0"],
        ["--precision", "fp8"],
    ],
)  # fmt: skip
def test_bad_input_exits_with_2(tmp_path: Path, wrong: list[str]) -> None:
    asked = ["study", "segmentation-measures", "--preset", "smoke", "--device", "cpu", "--out", str(tmp_path / "o")]
    said = CliRunner().invoke(app, [*asked, *wrong])
    assert said.exit_code == 2, said.output
    assert not (tmp_path / "o").exists()


@pytest.mark.usefixtures("unreported")
def test_real_hippocampus_volumes_from_end_to_end(tmp_path: Path) -> None:
    data = os.environ.get("DROPSCOPE_DATA")
    if not data:
        pytest.skip("DROPSCOPE_DATA is not set")
    pytest.importorskip("nibabel")
    source = Path(data) / "Task04_Hippocampus"
    few = tmp_path / "few"
    for part in ("imagesTr", "labelsTr"):
        (few / part).mkdir(parents=True)
        for path in sorted((source / part).iterdir())[:6]:
            (few / part / path.name).symlink_to(path)
    planned = tiny(tmp_path / "out", str(few), roi=(24, 40, 24), n_train=[2], noises=["bernoulli"])
    outcome = run(planned, show=False)
    assert outcome.rows.case.nunique() == 3
    assert outcome.rows.auprc.between(0, 1).all()
