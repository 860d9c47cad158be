"""Targets that read files of a user: tables, images, volumes, weights, checkpoints, and the data of the studies."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import random
import shutil
import struct
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

from dropscope.deploy.rivals.stored import StoredProbabilities
from dropscope.loading import load_data
from dropscope.loading.weights import load_weights
from dropscope.studies.segmentation_measures.decathlon import read_decathlon
from dropscope.studies.transformer_profile.domains import read_hellaswag, read_squad
from dropscope.studies.transformer_profile.items import read_items
from dropscope.studies.where_to_drop.cifar_files import read_cifar
from dropscope.volumes.nifti import find_cases, read_case, voxel_volume
from support.fuzzing.mutation import (
    WORDS,
    changed_rows,
    changed_text,
    damaged,
    json_document,
    written,
)
from support.fuzzing.trials import Target, Try, rewrite

_SPLITS = ("train", "test")
_ROWS = [
    {"text": f"w{i} fine film", "label": i % 2, "group": "ab"[i % 2], "context": f"c{i}", "split": _SPLITS[i % 2]}
    for i in range(6)
]  # fmt: skip


# --- tables -----------------------------------------------------------------------------------------------------------


def _tokens(texts: list[str], **_: Any) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.zeros(len(texts), 4, dtype=torch.long)}


def _read_as_data(path: Path, draw: random.Random) -> None:
    if draw.random() < 0.3:
        read_items(path, train=draw.random() < 0.7)
        return
    names = draw.choice((None, None, ["a", "b"]))
    for batch in load_data(path, tokenizer=_tokens, class_names=names, labelled=draw.random() < 0.9).dataset:
        dict(batch)


def csv_bytes(rows: list[dict[str, Any]]) -> bytes:
    """Rows as a CSV, whatever their cells are."""
    stream = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.writer(stream, escapechar="\\")
    writer.writerows([names, *([str(row.get(name, "")) for name in names] for row in rows)])
    return stream.getvalue().encode("utf-8", "surrogatepass")


def _csv(folder: Path) -> Try:
    sound = csv_bytes(_ROWS).decode()

    def attempt(draw: random.Random) -> None:
        match draw.randrange(3):
            case 0:
                content = damaged(sound.encode(), draw, (b",", b'"', b"\n", b"\r", b"\0", b"\xff", b"\xef\xbb\xbf"))
            case 1:
                content = changed_text(sound, draw).encode("utf-8", "surrogatepass")
            case _:
                content = csv_bytes(changed_rows(_ROWS, draw))
        _read_as_data(rewrite(folder / "a.csv", content), draw)

    return attempt


def _json_lines(folder: Path) -> Try:
    def attempt(draw: random.Random) -> None:
        if draw.random() < 0.5:
            content = b"\n".join(written(row, draw) for row in changed_rows(_ROWS, draw))
        else:
            lines = [json.dumps(row).encode() for row in _ROWS]
            lines[draw.randrange(len(lines))] = json_document(_ROWS[0], draw)
            content = b"\n".join(lines)
        _read_as_data(rewrite(folder / "a.jsonl", content), draw)

    return attempt


def parquet_bytes(rows: list[dict[str, Any]], draw: random.Random) -> bytes:
    """A parquet of odd cells as far as Arrow can write them, in an odd encoding; texts where it cannot."""
    columns: dict[str, Any] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        cells = [row.get(name) for row in rows]
        try:
            columns[name] = pa.array(cells)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            columns[name] = pa.array([str(cell).encode("utf-8", "replace").decode() for cell in cells])
    names = [name.encode("utf-8", "replace").decode() for name in columns]
    made = pa.Table.from_arrays(list(columns.values()), names=names)
    if draw.random() < 0.3 and made.num_columns:
        at = draw.randrange(made.num_columns)
        kinds = (pa.string(), pa.float64(), pa.int8(), pa.binary(), pa.bool_(), pa.timestamp("ns"), pa.large_string(),
                 pa.date32(), pa.decimal128(5, 2))  # fmt: skip
        with contextlib.suppress(pa.ArrowException, ValueError):
            made = made.set_column(at, names[at], made.column(at).cast(draw.choice(kinds), safe=False))
    if draw.random() < 0.2:
        made = made.replace_schema_metadata({"pandas": draw.choice(("{", "[]", '{"columns": 3}', "null"))})
    stream = io.BytesIO()
    try:
        pyarrow.parquet.write_table(made, stream, compression=draw.choice(("none", "snappy", "gzip", "zstd")))
    except (pa.ArrowException, ValueError):
        pyarrow.parquet.write_table(pa.table({"text": ["a"]}), stream)
    return stream.getvalue()


def _parquet(folder: Path) -> Try:
    sound = parquet_bytes(_ROWS, random.Random(1))

    def attempt(draw: random.Random) -> None:
        if draw.random() < 0.5:
            content = parquet_bytes(changed_rows(_ROWS, draw), draw)
        else:
            content = damaged(sound, draw)
            if draw.random() < 0.5:  # the footer is where the numbers are
                content = sound[: len(sound) // 2] + damaged(sound[len(sound) // 2 :], draw)
        _read_as_data(rewrite(folder / "a.parquet", content), draw)

    return attempt


def _scores(folder: Path) -> Try:
    from support.argument_fuzz import outcome

    rows = [
        {"predictive_entropy": i / 30, "correct": i % 7 > 0, "label": i % 2, "prediction": i % 3 > 0, "group": f"g{i}"}
        for i in range(30)
    ]

    def attempt(draw: random.Random) -> None:
        made = changed_rows(rows, draw)
        if draw.random() < 0.5:
            path = rewrite(folder / "a.jsonl", b"\n".join(written(row, draw) for row in made))
        else:
            path = rewrite(folder / "a.parquet", parquet_bytes(made, draw))
        extra = draw.choice(([], ["--per-class"], ["--max-false-negatives=0.2"], ["--json"], ["--dry-run"]))
        found = outcome(["defer", str(path), *extra])
        assert not found.problem or found.problem == "exit code 1", f"{found.problem}: {found.said[-300:]}"

    return attempt


def _probabilities(folder: Path) -> Try:
    sound = np.random.default_rng(0).dirichlet(np.ones(3), (2, 5)).astype(np.float32)
    streams: dict[str, bytes] = {}
    for suffix, save in (("npy", lambda s: np.save(s, sound)), ("npz", lambda s: np.savez(s, data=sound, fit=sound))):
        stream = io.BytesIO()
        save(stream)
        streams[suffix] = stream.getvalue()
    packed = io.BytesIO()
    np.savez_compressed(packed, data=sound)
    from safetensors.numpy import save as save_tensors

    streams |= {"safetensors": save_tensors({"data": sound}), "packed.npz": packed.getvalue()}
    cells = [{"member": i % 2, "id": i, "cat": 0.5, "dog": 0.5} for i in range(6)]

    def attempt(draw: random.Random) -> None:
        kind = draw.choice([*streams, "parquet"])
        if kind == "parquet":
            content = parquet_bytes(changed_rows(cells, draw), draw)
        elif kind == "safetensors":
            content = changed_safetensors(streams[kind], draw)
        else:
            content = damaged(streams[kind], draw, (b"True", b"|O", b"<f8", b"(9" + b"9" * 9, b"<U9", b"shape"))
        stored = StoredProbabilities.of(str(rewrite(folder / f"a.{kind}", content)))
        stored.check("data", 5, 3)

    return attempt


# --- pictures and volumes ---------------------------------------------------------------------------------------------


def _pictures() -> dict[str, bytes]:
    colours = np.random.default_rng(0).integers(0, 255, (5, 7, 3), np.uint8)
    deep = Image.fromarray(colours[..., 0].astype(np.uint16) * 200)
    palette = Image.fromarray(colours).quantize(8)
    wanted = dict.fromkeys(("png", "jpg", "bmp", "ppm", "webp"), Image.fromarray(colours))
    wanted |= {"tiff": deep, "gif": palette, "deep.png": deep, "palette.png": palette}
    wanted["alpha.png"] = wanted["png"].convert("RGBA")
    made = {}
    for name, image in wanted.items():
        stream = io.BytesIO()
        image.save(stream, {"jpg": "jpeg"}.get(name, name.split(".")[-1]))
        made[name] = stream.getvalue()
    return made


def changed_png(content: bytes, draw: random.Random) -> bytes:
    """A PNG whose chunks are damaged, exchanged or new, with the checksums that belong to them."""
    chunks, at = [], 8
    while at + 8 <= len(content):
        length = struct.unpack(">I", content[at : at + 4])[0]
        chunks.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + length]))
        at += length + 12
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(chunks))
        kind, body = chunks[at]
        match draw.randrange(5):
            case 0:
                chunks.insert(at, draw.choice(chunks))
            case 1 if len(chunks) > 1:
                del chunks[at]
            case 2:
                bomb = zlib.compress(bytes(draw.choice((100, 1 << 26))))
                name = draw.choice((b"zTXt", b"iTXt", b"iCCP", b"IDAT", b"eXIf", b"tRNS", b"acTL", b"fcTL", b"pHYs"))
                head = draw.choice((b"a\0\0", b"a\0\1\0\0\0", b"", b"icc\0\0", b"Exif\0\0"))
                chunks.insert(max(1, at), (name, head + bomb))
            case _:
                chunks[at] = kind, damaged(body, draw)
    parts = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    ]
    return content[:8] + b"".join(parts)


def _images(folder: Path) -> Try:
    sound = _pictures()
    pngs = [name for name in sound if name.endswith("png")]

    def attempt(draw: random.Random) -> None:
        if draw.random() < 0.4:
            name = draw.choice(pngs)
            content = changed_png(sound[name], draw)
        else:
            name = draw.choice(list(sound))
            content = damaged(sound[name], draw)
        path = rewrite(folder / f"a.{draw.choice(list(sound)) if draw.random() < 0.1 else name}", content)
        loaded = load_data(path, image_size=draw.choice((None, 4, "3x9")), mean=draw.choice((None, "imagenet")))
        loaded.dataset[0]

    return attempt


def _image_folders(folder: Path) -> Try:
    rows = [{"file": f"{i}.png", "label": i % 2} for i in range(3)]
    Image.new("L", (2, 2)).save(folder / "outside.png")

    def attempt(draw: random.Random) -> None:
        home = folder / "images"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        for i in range(3):
            Image.new("L", (2, 2)).save(home / f"{i}.png")
        (home / "out").symlink_to(folder)
        made = changed_rows(rows, draw)
        for row in made:
            if draw.random() < 0.3 and "file" in row:
                row["file"] = draw.choice(("../outside.png", str(folder / "outside.png"), "out/outside.png", *WORDS))
        rewrite(home / "labels.csv", csv_bytes(made))
        loaded = load_data(home)
        assert not any("outside" in name for name in loaded.names or ()), loaded.names
        loaded.dataset[0]

    return attempt


def _nifti(folder: Path) -> Try:
    import nibabel

    values = np.random.default_rng(0).normal(100, 30, (5, 4, 3)).astype(np.float32)
    kinds = (nibabel.Nifti1Image, np.float32), (nibabel.Nifti2Image, np.float32), (nibabel.Nifti1Image, np.int16)
    sound = [made(values.astype(dtype), np.eye(4)).to_bytes() for made, dtype in kinds]

    def attempt(draw: random.Random) -> None:
        whole = draw.choice(sound)
        header, voxels = whole[:544], whole[544:]
        content = damaged(header, draw) + voxels if draw.random() < 0.6 else damaged(whole, draw)
        name = "a.nii"
        if draw.random() < 0.4:
            name, content = "a.nii.gz", gzip.compress(content, 1)
            content = damaged(content, draw) if draw.random() < 0.4 else content
        path = rewrite(folder / name, content)
        (case,) = find_cases([path])
        read_case(case, draw.choice(("percentiles", "none")))
        voxel_volume(case)

    return attempt


# --- the studies' data ------------------------------------------------------------------------------------------------


def _squad(folder: Path) -> Try:
    from support.tiny_checkpoints import squad

    sound = json.loads(squad(folder / "squad.json", paragraphs=3).read_text())

    def attempt(draw: random.Random) -> None:
        read_squad(rewrite(folder / "a.json", json_document(sound, draw)))

    return attempt


def _hellaswag(folder: Path) -> Try:
    from support.tiny_checkpoints import hellaswag

    sound = [json.loads(line) for line in hellaswag(folder / "h.jsonl", stories=3).read_text().splitlines()]

    def attempt(draw: random.Random) -> None:
        lines = [json.dumps(row).encode() for row in sound]
        lines[draw.randrange(3)] = json_document(draw.choice(sound), draw)
        read_hellaswag(rewrite(folder / "a.jsonl", b"\n".join(lines)))

    return attempt


def _cifar(folder: Path) -> Try:
    record = bytes([3]) + bytes(range(256)) * 12
    binary, table = folder / "bin", folder / "parquet"
    binary.mkdir()
    table.mkdir()
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    png = io.BytesIO()
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(png, "png")
    rows = [{"img": {"bytes": png.getvalue(), "path": None}, "label": i} for i in range(2)]
    rewrite(table / "test-0.parquet", parquet_bytes(rows, random.Random(1)))

    def attempt(draw: random.Random) -> None:
        if draw.random() < 0.5:
            for name in names:
                rewrite(binary / name, record * 2)
            rewrite(binary / draw.choice(names), damaged(record * 2, draw))
            if draw.random() < 0.1:
                (binary / draw.choice(names)).unlink()
            read_cifar(binary)
            return
        made = [dict(row) for row in rows]
        if draw.random() < 0.6:
            picture: Any = changed_png(png.getvalue(), draw) if draw.random() < 0.5 else damaged(png.getvalue(), draw)
            made = [{**row, "img": {"bytes": picture, "path": None}} for row in made]
        else:
            made = changed_rows(made, draw)
        rewrite(table / "train-0.parquet", parquet_bytes(made, draw))
        read_cifar(table)

    return attempt


def _decathlon(folder: Path) -> Try:
    import nibabel

    root = folder / "task"
    for part, kind in (("imagesTr", np.float32), ("labelsTr", np.uint8)):
        (root / part).mkdir(parents=True)
        for i in range(2):
            nibabel.save(nibabel.Nifti1Image((np.arange(60).reshape(5, 4, 3) % 2).astype(kind), np.eye(4)),
                         root / part / f"c{i}.nii")  # fmt: skip
    sound = {"modality": {"0": "MRI"}, "labels": {"0": "background", "1": "thing"}}
    rows = [{"case": f"c{i}", "patient": f"p{i}", "centre": "x", "role": ""} for i in range(2)]

    def attempt(draw: random.Random) -> None:
        for name in ("dataset.json", "cases.csv"):
            (root / name).unlink(missing_ok=True)
        if draw.random() < 0.6:
            rewrite(root / "dataset.json", json_document(sound, draw))
        else:
            content = csv_bytes(changed_rows(rows, draw))
            rewrite(root / "cases.csv", content if draw.random() < 0.6 else damaged(content, draw))
        read = read_decathlon(root, patients=draw.choice((None, None, changed_text("c[0-9]", draw))))
        read.cases[0].load()

    return attempt


# --- weights ----------------------------------------------------------------------------------------------------------


def changed_safetensors(content: bytes, draw: random.Random) -> bytes:
    """Damaged bytes, or a changed header with the length that belongs to it."""
    if draw.random() < 0.4:
        return damaged(content, draw)
    length = struct.unpack("<Q", content[:8])[0]
    header = json_document(json.loads(content[8 : 8 + length]), draw)
    return struct.pack("<Q", len(header)) + header + content[8 + length :]


def _weights(folder: Path) -> Try:
    from safetensors.torch import save

    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    tensors = save({name: value.contiguous() for name, value in net.state_dict().items()})
    torch.save(net.state_dict(), folder / "sound.pt")
    pickled = (folder / "sound.pt").read_bytes()

    def attempt(draw: random.Random) -> None:
        if draw.random() < 0.6:
            path = rewrite(folder / "a.safetensors", changed_safetensors(tensors, draw))
        else:
            path = rewrite(folder / "a.pt", damaged(pickled, draw, (b"cos\nsystem\n", b"PK\1\2", b"\x80\x02")))
        load_weights(net, path)

    return attempt


def _checkpoints(folder: Path) -> Try:
    from dropscope.loading.names import load_model
    from support.broken_checkpoints import make_checkpoint

    sound = make_checkpoint(folder / "sound")
    parts: dict[str, Callable[[bytes, random.Random], bytes]] = {
        "config.json": lambda content, draw: json_document(json.loads(content), draw),
        "model.safetensors": changed_safetensors,
        "tokenizer.json": lambda content, draw: json_document(json.loads(content), draw),
        "tokenizer_config.json": lambda content, draw: json_document(json.loads(content), draw),
    }

    def attempt(draw: random.Random) -> None:
        home = folder / "broken"
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(sound, home)
        name = draw.choice(("config.json", "config.json", *parts))
        if (home / name).exists():
            rewrite(home / name, parts[name]((home / name).read_bytes(), draw))
        loaded = load_model(f"hf:{home}")
        rewrite(folder / "t.csv", b"text,label\na fine film,0\nawful,1\n")
        for batch in load_data(folder / "t.csv", loaded).dataset:
            dict(batch)

    return attempt


TARGETS = (
    Target("CSV", 6, _csv),
    Target("JSON lines", 8, _json_lines),
    Target("parquet", 5, _parquet),
    Target("scores", 2, _scores),
    Target("probabilities", 5, _probabilities),
    Target("images", 8, _images),
    Target("image folders", 2, _image_folders),
    Target("NIfTI", 6, _nifti),
    Target("SQuAD", 6, _squad),
    Target("HellaSwag", 6, _hellaswag),
    Target("CIFAR-10", 3, _cifar),
    Target("Decathlon", 3, _decathlon),
    Target("weights", 5, _weights),
    Target("checkpoints", 0.5, _checkpoints),
)
