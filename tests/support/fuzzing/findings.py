"""What fuzzing found: inputs that once ended in a traceback, ran code or took memory. Each is refused in one line."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
from PIL import Image
from torch import nn

from dropscope.deploy import DeferralRule, UncertaintyPredictor, defer, open_export
from dropscope.deploy.rivals.stored import StoredProbabilities
from dropscope.loading import load_data, read_table
from dropscope.placement import Placement
from dropscope.report import meta
from dropscope.report.registrations import Registration, registration_words
from dropscope.runs import open_run, sweep
from dropscope.studies.segmentation_measures.decathlon import read_decathlon
from dropscope.studies.transformer_profile.domains import read_squad
from dropscope.studies.transformer_profile.items import read_items
from dropscope.studies.where_to_drop.cifar_files import read_cifar
from dropscope.volumes.nifti import find_cases
from support.fuzzing.stored import signed, small_predictor
from support.fuzzing.trials import rewrite

Finding = Callable[[Path], object]
DEEP, DIGITS = b"[" * 100_000, b"1" * 5000


# --- data of the studies ----------------------------------------------------------------------------------------------


def _squad(content: bytes) -> Finding:
    return lambda folder: read_squad(rewrite(folder / "a.json", content))


def _cifar(label: Any = 3, picture: bytes | None = None) -> Finding:
    def read(folder: Path) -> object:
        sound = _picture((32, 32))
        for name, image in (("train", picture or sound), ("test", sound)):
            cells = pa.table({"img": [{"bytes": image}], "label": pa.array([label])})
            pyarrow.parquet.write_table(cells, folder / f"{name}.parquet")
        return read_cifar(folder)

    return read


def _picture(size: tuple[int, int], claimed: tuple[int, int] | None = None) -> bytes:
    """A PNG; its header may claim another size."""
    stream = io.BytesIO()
    Image.new("RGB", size).save(stream, "png")
    content = stream.getvalue()
    if claimed is not None:
        head = b"IHDR" + struct.pack(">II", *claimed) + content[24:29]
        content = content[:12] + head + struct.pack(">I", zlib.crc32(head)) + content[33:]
    return content


def _decathlon(content: bytes, name: str = "dataset.json") -> Finding:
    def read(folder: Path) -> object:
        for part in ("imagesTr", "labelsTr"):
            (folder / part).mkdir()
            rewrite(folder / part / "c.nii", _volume())
        rewrite(folder / name, content)
        return read_decathlon(folder)

    return read


# --- volumes, pictures, tables, arrays --------------------------------------------------------------------------------


def _volume(shape: tuple[int, ...] = (5, 4, 3)) -> bytes:
    """A NIfTI file of these voxels, or of this header and others."""
    import nibabel

    content = bytearray(nibabel.Nifti1Image(np.zeros((5, 4, 3), np.float32), np.eye(4)).to_bytes())
    content[40 : 42 + 2 * len(shape)] = struct.pack(f"<{len(shape) + 1}h", len(shape), *shape)
    return bytes(content)


def _far(folder: Path) -> object:
    import nibabel

    content = bytearray(nibabel.Nifti2Image(np.zeros((5, 4, 3), np.float32), np.eye(4)).to_bytes())
    content[400:496] = (np.eye(3, 4) * 1e200).tobytes()
    return find_cases([rewrite(folder / "a.nii", bytes(content))])


def _zeros(folder: Path) -> object:
    """A terabyte of zeros takes a gigabyte as gzip; half of that is made of members that are all alike."""
    header = _volume((32000, 32000, 256))
    content = gzip.compress(header) + gzip.compress(bytes(1 << 20)) * 4
    path = rewrite(folder / "a.nii.gz", content)
    os.truncate(path, 1 << 30)  # as long as a file that could hold them
    return find_cases([path])


def _link(inside: str, *, folder_link: bool) -> Finding:
    def read(root: Path) -> object:
        for place in ("home/cat", "home/dog", "outside"):
            (root / place).mkdir(parents=True)
            rewrite(root / place / "a.png", _picture((2, 2)))
        target = root / ("outside" if folder_link else "outside/a.png")
        (root / "home" / inside).symlink_to(target)
        return load_data(root / "home")

    return read


def _named(name: str) -> Finding:
    def read(root: Path) -> object:
        (root / "pictures").mkdir()
        for place in ("pictures/a.png", "secret.png"):
            rewrite(root / place, _picture((2, 2)))
        (root / "pictures" / "out").symlink_to(root)
        rewrite(root / "pictures" / "labels.csv", f"file,label\n{name.format(root=root)},0\n".encode())
        return load_data(root / "pictures")

    return read


def _repeated(folder: Path) -> object:
    """80 GB of texts, in a few kilobytes."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), pa.array(["x" * 100_000]))
    table = pa.Table.from_arrays([text] * 40, names=[f"c{i}" for i in range(40)])
    pyarrow.parquet.write_table(table, folder / "a.parquet", store_schema=False)
    return read_table(folder / "a.parquet")


def _packed(folder: Path) -> object:
    """An archive that says it unpacks to many terabytes."""
    stream = io.BytesIO()
    np.savez_compressed(stream, data=np.zeros((1, 2, 3)))
    content = stream.getvalue()
    at = content.index(b"PK\1\2")
    content = content[: at + 24] + struct.pack("<I", 0xFFFFFFF0) + content[at + 28 :]
    path = rewrite(folder / "a.npz", content)
    with zipfile.ZipFile(path, "a") as archive:
        for number in range(60):
            archive.writestr(f"b{number}.npy", b"")
    raw = path.read_bytes()
    start = raw.index(b"PK\1\2")
    raw = raw[:start] + b"".join(
        b"PK\1\2" + part[:20] + struct.pack("<I", 0xFFFFFFF0) + part[24:] for part in raw[start:].split(b"PK\1\2")[1:]
    )
    return StoredProbabilities.of(str(rewrite(path, raw)))


# --- what Dropscope wrote ---------------------------------------------------------------------------------------------


def _rule(**changes: Any) -> Finding:
    def read(folder: Path) -> object:
        rng = np.random.default_rng(0)
        scores = rng.random(400)
        rule = defer(scores, rng.random(400) > scores**2, max_error=0.1)
        content = {**json.loads(rule.save(folder / "rule.json").read_text()), **changes}
        return str(DeferralRule.load(rewrite(folder / "rule.json", json.dumps(content).encode())))

    return read


def _predictor(change: Callable[[dict[str, Any]], object], tensors: bytes | None = None) -> Finding:
    def read(folder: Path) -> object:
        net, inputs, home = small_predictor(folder)
        record = json.loads((home / "predictor.json").read_text())
        change(record)
        content = (home / "calibration.safetensors").read_bytes() if tensors is None else tensors
        rewrite(home / "calibration.safetensors", content)
        rewrite(home / "predictor.json", signed(record, content))
        return UncertaintyPredictor.load(home, net)(inputs[:2])

    return read


def _claims(content: object) -> Finding:
    def read(folder: Path) -> object:
        for name in "ab":
            (folder / name).mkdir()
            rewrite(folder / name / "claims.json", json.dumps(content).encode())
        return meta([folder / "a", folder / "b"])

    return read


def _run(**changes: Any) -> Finding:
    def read(folder: Path) -> object:
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
        inputs = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
        sweep(net, ["last=0.5"], (inputs, torch.arange(20) % 3), passes=3, out=folder / "run", progress=False)
        path = folder / "run" / "run.json"
        known = json.loads(path.read_text())
        known["spec"] = {**known["spec"], **changes} if changes else "none"
        rewrite(path, json.dumps(known).encode())
        return open_run(folder / "run")

    return read


_EVIDENCE = {"estimate": {"value": 0.5, "low": {}, "high": 1, "p": 0.1, "n": 3, "method": "t"}, "direction": "above"}
_CLAIM = {"name": "a", "statement": "a", "ours": "1", "verdict": "supported", "how": "t", "evidence": [_EVIDENCE]}
_STATEMENT = {"file": "r.json", "hash": "0", "registered": "now", "claims": {}, "differences": []}


def _registered(**changes: Any) -> Finding:
    def read(folder: Path) -> object:
        known = {"study": "s", "hash": "0", "registered": "now", "claims": {}, "options": {}, "setting": {}, **changes}
        rewrite(folder / "study.json", b"{}")
        return Registration({"study": "s"}).check(rewrite(folder / "r.json", json.dumps(known).encode()), folder)

    return read


def _stated(**changes: Any) -> Finding:
    def read(folder: Path) -> object:
        rewrite(folder / "preregistration.json", json.dumps({**_STATEMENT, **changes}).encode())
        return registration_words(folder, ())

    return read


# --- programs ---------------------------------------------------------------------------------------------------------


class _Code:
    """What a pickle may name: here, a file that is made when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def _program(place: str) -> Finding:
    """A .pt2 that names code to run, where torch.export would unpickle it."""

    def read(folder: Path) -> object:
        path = folder / "a.pt2"
        net = nn.Linear(2, 2)
        torch.export.save(torch.export.export(net, (torch.zeros(1, 2),)), path, extra_files={"dropscope.json": "{}"})
        with zipfile.ZipFile(path) as archive:
            held = {name: archive.read(name) for name in archive.namelist()}
        top = next(iter(held)).split("/")[0]
        evil = pickle.dumps(_Code(folder / "ran"))
        if place == "inputs":
            held[f"{top}/data/sample_inputs/model.pt"] = evil
        else:
            name = f"{top}/data/constants/model_constants_config.json"
            entry = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
            held[name] = json.dumps({"config": {"c": entry}}).encode()
            held[f"{top}/data/constants/opaque_obj_0"] = evil
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in held.items():
                archive.writestr(name, content)
        try:
            return open_export(path)
        finally:
            assert not (folder / "ran").exists(), "code ran"

    return read


FINDINGS: dict[str, Finding] = {
    "SQuAD: a number of 5000 digits": _squad(b'{"data": ' + DIGITS + b"}"),
    "SQuAD: nested": _squad(DEEP),
    "items: half of a surrogate pair": lambda folder: read_items(
        rewrite(folder / "a.jsonl", b'{"text": "a", "label": "\\ud800"}\n' * 8)
    ),
    "CIFAR-10: labels that are texts": _cifar("three"),
    "CIFAR-10: labels that are lists": _cifar([1, 2]),
    "CIFAR-10: labels that are fractions": _cifar(1.5),
    "CIFAR-10: a picture cut short": _cifar(picture=_picture((32, 32))[:40]),
    "CIFAR-10: a picture of 10^10 pixels": _cifar(picture=_picture((32, 32), (100_000, 100_000))),
    "CIFAR-10: a picture of another kind": _cifar(picture=b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n"),
    "Decathlon: nested": _decathlon(DEEP),
    "Decathlon: a number of 5000 digits": _decathlon(DIGITS),
    "Decathlon: a table of bytes": _decathlon(bytes(range(256)), "cases.csv"),
    "NIfTI: an affine whose determinant overflows": _far,
    "NIfTI: a terabyte of zeros": _zeros,
    "images: a link to a file": _link("cat/b.png", folder_link=False),
    "images: a link to a folder": _link("cat/more", folder_link=True),
    "images: a name of the folder above": _named("../secret.png"),
    "images: an absolute name": _named("{root}/secret.png"),
    "images: a name by way of a link": _named("out/secret.png"),
    "images: a name that comes back": _named("../pictures/../secret.png"),
    "parquet: texts that are repeated": _repeated,
    "probabilities: an archive of terabytes": _packed,
    "placement: a name of 5000 characters": lambda folder: Placement.parse("x" * 5000 + "@nowhere=0.5"),
    "rule: reach of numbers": _rule(reach=[0.1, 0.2]),
    "rule: thresholds a list": _rule(thresholds=[1]),
    "rule: a coverage in words": _rule(coverage="most"),
    "rule: a threshold of 400 digits": _rule(threshold=10**400),
    "rule: a risk without a name": _rule(risks=[{"limit": 0.1, "observed": 0.1}]),
    "rule: remarks of numbers": _rule(remarks=[1]),
    "rule: an unknown field": _rule(colour="red"),
    "predictor: a recipe without a placement": _predictor(lambda record: record["recipe"].pop("placement")),
    "predictor: passes in words": _predictor(lambda record: record["recipe"].update(passes="many")),
    "predictor: a rule that is a number": _predictor(lambda record: record.update(rule=3)),
    "predictor: ids that are a number": _predictor(lambda record: record.update(ids=1)),
    "predictor: fewer ids": _predictor(lambda record: record.update(ids=["a"])),
    "predictor: no safetensors": _predictor(lambda record: None, b"x" * 100),
    "predictor: no tensors": _predictor(lambda record: None, struct.pack("<Q", 2) + b"{}"),
    "claims: a list": _claims([]),
    "claims: an interval of objects": _claims({"study": "s", "data": "d", "claims": [_CLAIM]}),
    "claims: evidence that is a text": _claims({"study": "s", "data": "d", "claims": [{**_CLAIM, "evidence": "x"}]}),
    "run: a specification that is a text": _run(),
    "run: no engine": _run(engine=None),
    "run: a seed that is a text": _run(seed="0"),
    "run: a count that is a list": _run(count=[1]),
    "registration: a date that is a number": _registered(registered=3),
    "registration: half of a surrogate pair": _registered(registered="\ud800"),
    "registration: a study of several lines": _registered(study="a\nb"),
    "registration: claims that are texts": _registered(claims={"a": "b"}),
    "statement: no hash": _stated(hash=None),
    "statement: differences that are a number": _stated(differences=3),
    "program: sample inputs that run code": _program("inputs"),
    "program: constants that run code": _program("constants"),
}
