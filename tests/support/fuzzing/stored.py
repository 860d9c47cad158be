"""Targets that read what Dropscope itself wrote, long ago or on another machine: runs, predictors, rules, records."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from dropscope.deploy import DeferralRule, UncertaintyPredictor, defer
from dropscope.model import digest
from dropscope.report import meta, write_report
from dropscope.runs import open_run, sweep
from dropscope.volumes.records import examine_record, read_found, remove_case
from support.fuzzing.files import changed_safetensors
from support.fuzzing.mutation import changed, damaged, json_document, written
from support.fuzzing.trials import Target, Try, rewrite, silenced, use


def _network() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3)).eval()
    inputs = torch.randn(60, 4)
    labels = net(inputs).argmax(1)
    labels[::4] = (labels[::4] + 1) % 3
    return net, inputs, labels


def _rules(folder: Path) -> Try:
    draw = random.Random(0)
    scores = [draw.random() for _ in range(400)]
    right = [draw.random() > score**2 for score in scores]
    classes = [number % 2 for number in range(400)]
    made = [
        defer(scores, right, max_error=0.1),
        defer(scores, right, max_error=0.001),
        defer(scores, right, max_error=0.2, per_class=True, predictions=classes),
    ]
    sound = [json.loads(rule.save(folder / "rule.json").read_text()) for rule in made]

    def attempt(draw: random.Random) -> None:
        rule = DeferralRule.load(rewrite(folder / "a.json", json_document(draw.choice(sound), draw)))
        use(rule, rule.facts())
        rule([0.1, 0.9, float("nan")], [0, 1, 1])

    return attempt


def small_predictor(folder: Path) -> tuple[nn.Module, torch.Tensor, Path]:
    """A network, inputs, and the folder of a predictor."""
    net, inputs, labels = _network()
    fitted = UncertaintyPredictor.fit(net, (inputs, labels), "last=0.5", 5, max_error=0.5)
    return net, inputs, fitted.save(folder / "sound")


def signed(record: dict[str, Any], content: bytes) -> bytes:
    """A predictor's record with the digests that belong to it: what is wrong with it then, they do not tell."""
    held = {**record, "calibration": hashlib.sha256(content).hexdigest()}
    held.pop("digest", None)
    return json.dumps({**held, "digest": digest(held)}).encode()


def _predictors(folder: Path) -> Try:
    net, inputs, home = small_predictor(folder)
    record = json.loads((home / "predictor.json").read_text())
    tensors = (home / "calibration.safetensors").read_bytes()

    def attempt(draw: random.Random) -> None:
        new, content, broken = record, tensors, folder / "a"
        shutil.rmtree(broken, ignore_errors=True)
        broken.mkdir()
        if draw.random() < 0.3:
            content = changed_safetensors(tensors, draw)
        else:
            new = changed({name: value for name, value in record.items() if name != "digest"}, draw)
        text = written(new, draw) if draw.random() < 0.9 else damaged(json.dumps(new).encode(), draw)
        if draw.random() < 0.8:
            with contextlib.suppress(ValueError, RecursionError, TypeError, AttributeError):
                text = signed(json.loads(text), content)
        rewrite(broken / "predictor.json", text)
        rewrite(broken / "calibration.safetensors", content)
        loaded = UncertaintyPredictor.load(broken, net)
        use(loaded)
        use(loaded(inputs[:4]))

    return attempt


def _run_folders(folder: Path) -> Try:
    net, inputs, labels = _network()
    home = folder / "sound"
    sweep(net, ["last=0.2", "last=0.5"], (inputs, labels), passes=4, out=home)
    files = [str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()]
    records = [name for name in files if name.endswith(".json")]

    def attempt(draw: random.Random) -> None:
        broken = folder / "a"
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(home, broken)
        name = draw.choice(files)
        match draw.randrange(8):
            case 0:
                (broken / name).unlink()
            case 1 | 2 | 3:
                rewrite(broken / name, damaged((home / name).read_bytes(), draw))
            case _:
                name = draw.choice(records)
                rewrite(broken / name, json_document(json.loads((home / name).read_bytes()), draw))
        with silenced():
            run = open_run(broken)
            use(run, run.best(count=2), run.verdict)
            if draw.random() < 0.2:
                write_report(broken, out=None)

    return attempt


def _resumed_runs(folder: Path) -> Try:
    net, inputs, labels = _network()
    home = folder / "sound"
    whole = sweep(net, ["last=0.2", "last=0.5"], (inputs, labels), passes=4, out=home, progress=False)
    files = [str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()]

    def attempt(draw: random.Random) -> None:
        broken = folder / "a"
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(home, broken)
        name = draw.choice(files)
        rewrite(broken / name, damaged((home / name).read_bytes(), draw))
        with silenced():
            again = sweep(net, ["last=0.2", "last=0.5"], (inputs, labels), passes=4, out=broken, progress=False)
        pd.testing.assert_frame_equal(again.rows, whole.rows)
        pd.testing.assert_frame_equal(again.baseline, whole.baseline)
        pd.testing.assert_frame_equal(again.intervals, whole.intervals)
        pd.testing.assert_frame_equal(again.examples, whole.examples)

    return attempt


def _claims(folder: Path) -> Try:
    from dropscope.analysis import Estimate
    from dropscope.report.claims import Claim, Evidence
    from dropscope.report.records import write_claims

    homes = [folder / name for name in "abc"]
    for number, home in enumerate(homes):
        home.mkdir()
        estimate = Estimate(0.5 + number / 10, 0.2, 0.8 + number / 10, 0.01, 12, "t")
        evidence = [Evidence(estimate, "above", 0.0, margin, scale=scale)
                    for margin, scale in ((None, "linear"), (0.1, "log"), ((0.1, 0.2), "correlation"))]  # fmt: skip
        claims = [
            Claim(f"a{i}", "a holds", "", "1", "supported", "t", evidence=(each,)) for i, each in enumerate(evidence)
        ]
        write_claims(home, "s", str(number), claims)
    sound = json.loads((homes[0] / "claims.json").read_text())
    use(meta(homes))

    def attempt(draw: random.Random) -> None:
        rewrite(homes[0] / "claims.json", json_document(sound, draw))
        use(meta(homes))

    return attempt


def _case_records(folder: Path) -> Try:
    found = {
        "case": "c", "image": "c.nii", "maps": {"entropy": {"mean": 0.1, "max": 0.5}}, "foreground": [1.0, 2.0, 3.0],
        "millilitres": [1.0], "millilitres_low": [1.0], "millilitres_high": [1.0], "uncertainties": [0.1],
        "volume_variation": [None], "pairwise_dice": [0.5], "uncertainty": 0.2,
    }  # fmt: skip
    content = b"a map"
    sound = {"spec": {"seed": 0}, "found": found, "files": {"m.nii.gz": hashlib.sha256(content).hexdigest()}}
    (folder / "outside").write_text("x")

    def attempt(draw: random.Random) -> None:
        home = folder / "case"
        home.mkdir(exist_ok=True)
        rewrite(home / "m.nii.gz", content)
        rewrite(home / "case.json", json_document(sound, draw))
        if draw.random() < 0.3:
            remove_case(home)
            assert (folder / "outside").exists()
            return
        if examine_record(home, {"seed": 0}, ["m.nii.gz"], 1).done:
            read_found(home)

    return attempt


def _registrations(folder: Path) -> Try:
    from dropscope.report.registrations import Registration, registration_words

    sound = {
        "study": "s", "hash": "0", "registered": "2026-01-01T00:00:00+00:00", "seeds": [1], "level": 0.05,
        "claims": {"a": {"name": "a", "statement": "x", "rule": "y", "margin": "0.1"}}, "options": {"passes": 3},
        "setting": {"data": "x"}, "rules": "0",
    }  # fmt: skip
    (folder / "study.json").write_text("{}")

    def attempt(draw: random.Random) -> None:
        path = rewrite(folder / "r.json", json_document(sound, draw))
        Registration(sound).check(path, folder)
        if draw.random() < 0.5:
            kept = json.loads((folder / "preregistration.json").read_text())
            rewrite(folder / "preregistration.json", json_document(kept, draw))
        use(registration_words(folder, ()))

    return attempt


TARGETS = (
    Target("deferral rules", 5, _rules),
    Target("predictors", 2, _predictors),
    Target("run folders", 2, _run_folders),
    Target("resumed runs", 0.5, _resumed_runs),
    Target("claims", 2, _claims),
    Target("case records", 3, _case_records),
    Target("registrations", 3, _registrations),
)
