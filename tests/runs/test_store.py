"""A run as a folder: whole files, one specification, taken up again after any kill with the same rows."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import dropscope as ds
from dropscope.model.fingerprints import code_fingerprint, digest, weights_fingerprint
from dropscope.runs.rows import RowMaker
from dropscope.runs.store import Store
from support import zoo
from support.errors import refused


def net(seed: int = 0) -> nn.Module:
    return zoo.seeded(lambda: nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)), seed)


def given(**changed: Any) -> dict[str, Any]:
    whole = {"model": net(), "placements": [f"0={r}" for r in (0.1, 0.3, 0.5)] + ["last=.5"], "passes": 3,
             "data": (zoo.vectors(20), torch.arange(20) % 3), "keep": "none"}  # fmt: skip
    return whole | changed


def rows(number: int, text: str = "a") -> pd.DataFrame:
    return pd.DataFrame({"number": [number, number], "order": [0, 1], "placement": text, "aurc": [0.1, 0.2]})


@pytest.mark.parametrize("work", [ds.sweep, ds.plan_sweep])
def test_a_folder_has_a_name(work: Any) -> None:
    with refused("out"):
        work(**given(out=" "))


# --- a closed form ----------------------------------------------------------------------------------------------------


def test_parts_come_back_in_the_order_of_placements(tmp_path: Path) -> None:
    store = Store(tmp_path / "run")
    assert store.open({"passes": 3}, {"block": 7}) == {"block": 7}
    store.write_rows("b", rows(0, "first"))
    store.write_rows("a", rows(1, "second"))
    assert "a" in store.parts()
    assert "c" not in store.parts()
    found = store.read_rows()
    assert found.placement.tolist() == ["first", "first", "second", "second"]
    assert list(found.columns) == ["placement", "aurc"]
    known = json.loads((tmp_path / "run" / "run.json").read_text())
    assert known["spec"] == {"passes": 3}


def test_digests_and_fingerprints() -> None:
    assert digest(["a", "b"]) != digest(["b", "a"])
    assert weights_fingerprint(net()) == weights_fingerprint(net())
    assert weights_fingerprint(net()) != weights_fingerprint(net(1))
    changed = zoo.resnet()
    before = weights_fingerprint(changed)
    changed.bn1.running_mean[0] += 1e-6  # a buffer counts as well
    assert weights_fingerprint(changed) != before


# --- contracts --------------------------------------------------------------------------------------------------------


def test_torn_files_are_removed_and_whole_ones_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.open({"passes": 3}, {})
    store.write_rows("a", rows(0))
    torn = [tmp_path / "rows" / ".part-x1", tmp_path / ".part-y2"]
    for path in torn:
        path.write_bytes(b"half a file")
    assert len(Store(tmp_path).read_rows()) == 2  # never read
    Store(tmp_path).open({"passes": 3}, {})
    assert not any(path.exists() for path in torn)
    assert "a" in Store(tmp_path).parts()


def test_a_damaged_part_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path)
    store.open({}, {})
    store.write_rows("a", rows(0))
    (file,) = (tmp_path / "rows").iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert not store.parts()
    assert not store.parts()
    assert sum(file.name in record.message for record in caplog.records) == 1


def test_a_part_is_there_or_it_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    store.open({}, {})
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("killed before the rename")))
    with pytest.raises(OSError, match="killed"):
        store.write_rows("a", rows(0))
    assert "a" not in store.parts()
    assert not list((tmp_path / "rows").iterdir())  # nor is half of it


def test_what_is_fixed_stays_as_at_the_first_start(tmp_path: Path) -> None:
    Store(tmp_path).open({"passes": 3}, {"memory": 1})
    assert Store(tmp_path).open({"passes": 3}, {"memory": 2}) == {"memory": 1}


def test_folders_that_are_no_run(tmp_path: Path) -> None:
    with refused("folder"):
        Store(tmp_path / "nothing").read_spec()
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "part-a.parquet").write_bytes(b"")
    with refused("out"):
        Store(tmp_path).open({}, {})
    (tmp_path / "run.json").write_text("{")
    with refused(str(tmp_path / "run.json")):
        Store(tmp_path).open({}, {})
    (tmp_path / "run.json").write_text('{"format": 99}')
    with refused(str(tmp_path / "run.json")) as caught:
        Store(tmp_path).open({}, {})
    assert caught.value.received == 99


def test_an_empty_run_has_no_rows(tmp_path: Path) -> None:
    Store(tmp_path).open({}, {})
    with refused("folder"):
        Store(tmp_path).read_rows()


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "passes": ({"passes": 4}, "passes"),
    "seed": ({"seed": 1}, "seed"),
    "weights": ({"model": net(1)}, "weights"),
    "inputs": ({"data": (zoo.vectors(20) + 1, torch.arange(20) % 3)}, "data"),
    "labels": ({"data": (zoo.vectors(20), torch.arange(20) % 2)}, "data"),
    "placements": ({"placements": ["0=.1"]}, "placements"),
    "order of placements": ({"placements": ["last=.5", "0=.1", "0=.3", "0=.5"]}, "placements"),
    "label": ({"label": "plain"}, "label"),
    "masks": ({"masks": "per_pass"}, "masks"),
    "draws": ({"draws": "stratified"}, "draws"),
    "measures": ({"measures": ["bald"]}, "measures"),
    "scores": ({"scores": ["aurc"]}, "scores"),
    "ids": ({"ids": "index"}, "keyed_by"),
    "engine": ({"engine": "loop"}, "engine"),
    "outputs": ({"outputs": lambda o: (5 * o).softmax(1)}, "outputs"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    ds.sweep(**given(), out=folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", CHANGES)
def test_another_run_does_not_mix_with_this_one(name: str, finished: Path) -> None:
    changed, key = CHANGES[name]
    before = contents(finished)
    with refused("out") as caught:
        ds.sweep(**given(**changed), out=finished)
    assert key in str(caught.value.received)
    assert contents(finished) == before


def test_a_rerun_is_a_no_op_with_the_same_rows(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ds.sweep(**given())
    monkeypatch.setattr(RowMaker, "rows", lambda *_: pytest.fail("nothing is missing"))
    again = ds.sweep(**given(), out=finished)
    pd.testing.assert_frame_equal(again.rows, first.rows, check_dtype=False)
    assert again.folder == finished
    assert {"run.json", "baseline.parquet", "examples.parquet"} <= set(contents(finished))


def test_a_resume_does_only_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each first site of each kind of noise is a unit of its own.
    asked_for = given(placements=["0=.1", "last=.5", "0=.1 noise=gaussian", "last=.5 noise=gaussian"])
    whole = ds.sweep(**asked_for, out=tmp_path)
    parts = sorted((tmp_path / "rows").iterdir())
    assert len(parts) == 4
    kept = {path.name: path.read_bytes() for path in parts}
    parts[1].unlink()
    parts[3].unlink()
    asked: list[Any] = []
    made = RowMaker.rows

    def counted(self: Any, unit: Any, tick: Any) -> pd.DataFrame:
        asked.append(unit)
        return made(self, unit, tick)

    monkeypatch.setattr(RowMaker, "rows", counted)
    again = ds.sweep(**asked_for, out=tmp_path)
    assert len(asked) == 2
    pd.testing.assert_frame_equal(again.rows, whole.rows)
    assert {path.name: path.read_bytes() for path in (tmp_path / "rows").iterdir()} == kept


def test_the_number_of_examples_in_a_batch_may_change(finished: Path) -> None:
    """Keys belong to examples, so batches are no part of what a run is."""
    ds.sweep(**given(batch_size=7), out=finished)


# --- killed at any moment ---------------------------------------------------------------------------------------------

# Imports and captures once, then runs each sweep in a fork of itself: a kill takes the fork alone.
SCRIPT = textwrap.dedent("""
    import os
    import sys
    import torch
    torch.set_num_threads(1)
    sys.path.insert(0, {tests!r})
    from support import zoo
    from torch import nn
    import dropscope as ds
    # Each first site of each kind of noise is a unit of its own: ten layers, two kinds.
    net = zoo.seeded(lambda: nn.Sequential(*(nn.Linear(8, 8) for _ in range(10)), nn.Linear(8, 3)))
    grid = [f"{{site}}={{rate}} noise={{noise}}" for noise in ("bernoulli", "gaussian") for site in range(10)
            for rate in (.2, .5)]
    data = zoo.vectors(200), torch.arange(200) % 3

    def run(passes, **options):
        ds.sweep(net, grid, data, passes=passes, engine="shared", progress=False, **options)

    run(1, keep="none")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run(60, keep="top:3", out=line.strip())
            os._exit(0)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
""")


def test_killed_at_random_moments_a_run_ends_with_the_same_rows(tmp_path: Path) -> None:
    script = SCRIPT.format(tests=str(Path(__file__).parents[1]))
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdin is not None
    assert parent.stdout is not None

    def started(name: str) -> int:
        parent.stdin.write(f"{tmp_path / name}\n")
        parent.stdin.flush()
        return int(parent.stdout.readline())

    def parts(name: str) -> int:
        return len(list((tmp_path / name / "rows").glob("part-*")))

    started("whole")
    assert parent.stdout.readline() == "0\n"
    every = parts("whole")
    draw, left = random.Random(0), []
    for new in (0, 1, 3, 2, 1):  # killed when so many more parts are on disk, and a moment later
        child, before = started("killed"), parts("killed")
        while parts("killed") < before + new:
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        assert int(parent.stdout.readline()) == -signal.SIGKILL
        left.append(every - parts("killed"))
    assert min(left) > 0  # every kill came in the midst of the work
    started("killed")
    assert parent.stdout.readline() == "0\n"
    parent.stdin.close()
    assert parent.wait(timeout=60) == 0
    parent.stdout.close()
    whole, again = contents(tmp_path / "whole"), contents(tmp_path / "killed")
    assert every == 20
    assert set(again) == set(whole)  # no part lost, doubled or torn
    for name in (name for name in whole if name.startswith("rows")):
        assert again[name] == whole[name], name
    first, second = (Store(tmp_path / name).read_rows() for name in ("whole", "killed"))
    pd.testing.assert_frame_equal(first, second)
    assert len(first) == 40 * 5
    assert np.isfinite(first.aurc).all()


# --- what is not the same run -----------------------------------------------------------------------------------------


class _Bent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 3)
        self.register_buffer("shift", torch.zeros(8), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.relu(self.fc1(x) + self.shift))


class _OtherwiseBent(_Bent):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.sin(self.fc1(x) + self.shift))


def _again(net: nn.Module, out: Path, **options: Any) -> Any:
    data = torch.linspace(-1, 1, 48).reshape(12, 4), torch.arange(12) % 3
    return ds.sweep(net.eval(), ["fc1=0.3"], data, passes=3, out=out, keep="none", progress=False, **options)


def test_other_code_with_the_same_weights_is_another_run(tmp_path: Path) -> None:
    net = zoo.seeded(_Bent)
    _again(net, tmp_path / "run")
    _again(net, tmp_path / "run")
    other = _OtherwiseBent()
    other.load_state_dict(net.state_dict())
    with refused("out") as caught:
        _again(other, tmp_path / "run")
    assert "code" in str(caught.value.received)
    net.shift += 1
    with refused("out") as caught:
        _again(net, tmp_path / "run")
    assert "weights" in str(caught.value.received)


def test_another_function_of_the_outputs_is_another_run(tmp_path: Path) -> None:
    net = zoo.seeded(_Bent)
    _again(net, tmp_path / "run", outputs=lambda output: output.softmax(-1))
    with refused("out") as caught:
        _again(net, tmp_path / "run", outputs=lambda output: (2 * output).softmax(-1))
    assert "outputs" in str(caught.value.received)


class _Clipped(_Bent):
    def __init__(self, at: float) -> None:
        super().__init__()
        self.at = at

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.relu(self.fc1(x)).clamp(max=self.at))


def _tempered(by: float) -> Any:
    return lambda output: (output / by).softmax(-1)


def test_another_setting_of_the_same_code_is_another_run(tmp_path: Path) -> None:
    """A number that a module holds, one that a function closes over, one that a partial carries."""
    _again(zoo.seeded(lambda: _Clipped(9.0)), tmp_path / "run")
    _again(zoo.seeded(lambda: _Clipped(9.0)), tmp_path / "run")
    with refused("out") as caught:
        _again(zoo.seeded(lambda: _Clipped(0.3)), tmp_path / "run")
    assert "code" in str(caught.value.received)
    _again(zoo.seeded(_Bent), tmp_path / "closure", outputs=_tempered(1.0))
    _again(zoo.seeded(_Bent), tmp_path / "closure", outputs=_tempered(1.0))
    with refused("out") as caught:
        _again(zoo.seeded(_Bent), tmp_path / "closure", outputs=_tempered(0.1))
    assert "outputs" in str(caught.value.received)
    assert code_fingerprint(partial(pow, 2)) != code_fingerprint(partial(pow, 3))

    class Tempered:
        def __init__(self, by: float) -> None:
            self.by = by

        def answer(self, output: Tensor) -> Tensor:
            return (output / self.by).softmax(-1)

    assert code_fingerprint(Tempered(1.0).answer) != code_fingerprint(Tempered(2.0).answer)
    assert code_fingerprint(Tempered(1.0).answer) == code_fingerprint(Tempered(1.0).answer)

    def counts_down(n: int) -> int:
        return n and counts_down(n - 1)

    assert code_fingerprint(counts_down) == code_fingerprint(counts_down)  # closes over itself


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    out = Path("/proc/dropscope") if os.geteuid() == 0 else tmp_path / "closed" / "run"
    with refused("out") as caught:
        _again(zoo.seeded(_Bent), out)
    assert str(out) in str(caught.value)


def test_code_has_one_name_in_every_process() -> None:
    code = "import torch\nfrom dropscope.model import code_fingerprint\n"
    code += "print(code_fingerprint(lambda x: x in {'a', 'b', 'c', 'd'} or [y for y in x]))"
    said = {
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, text=True,
                       capture_output=True, check=True).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(said) == 1


def _truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _flipped(content: bytes) -> bytes:
    """One bit of the last byte but a hundred: the footer, which Arrow would read without a complaint."""
    return content[:-100] + bytes([content[-100] ^ 1]) + content[-99:]


@pytest.mark.parametrize("damage", [_truncated, _flipped, lambda content: b""])
@pytest.mark.parametrize("pattern", ["rows/part-*.parquet", "baseline.parquet", "examples.parquet", "finished.json"])
def test_what_is_damaged_is_computed_again(tmp_path: Path, pattern: str, damage: Any) -> None:
    net = zoo.seeded(_Bent)
    whole = _again(net, tmp_path / "run")
    before = contents(tmp_path / "run")
    (path,) = (tmp_path / "run").glob(pattern)
    path.write_bytes(damage(path.read_bytes()))
    with refused("folder"):
        ds.open_run(tmp_path / "run")
    again = _again(net, tmp_path / "run")
    for name in ("rows", "baseline", "examples", "intervals"):
        pd.testing.assert_frame_equal(getattr(again, name), getattr(whole, name))
    assert contents(tmp_path / "run") == before


@pytest.mark.parametrize("text", ["[]", '{"format": 1}', '{"format": 2}'])
def test_a_run_json_that_says_nothing_is_named(tmp_path: Path, text: str) -> None:
    _again(zoo.seeded(_Bent), tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text(text)
    with refused(str(tmp_path / "run" / "run.json")):
        _again(zoo.seeded(_Bent), tmp_path / "run")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with refused("out") as caught:
        _again(zoo.seeded(_Bent), tmp_path / "run")
    assert str(tmp_path / "run") in str(caught.value)


def test_of_two_that_begin_at_once_the_first_stands(tmp_path: Path) -> None:
    store = Store(tmp_path / "run")
    store.open({"weights": "a"}, {})
    assert not store.place.create("run.json", b'{"format": 1, "spec": {"weights": "b"}, "fixed": {}}')
    assert store.read_spec()["spec"] == {"weights": "a"}
    assert not list((tmp_path / "run").glob(".part-*"))
