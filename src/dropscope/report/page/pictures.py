"""Errors as people see them: pictures or texts of those that would pass, and of those that would be deferred."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from dropscope.display import cut
from dropscope.errors import BadInput, Phrase
from dropscope.report.page.content import Example, Pictures, Section

_SHOWN = 24  # errors of either kind
_SIDE = 112  # pixels of a picture
_SMALL = 64  # pixels up to which a picture shows its pixels
_TEXT = 280
_EXACT = "data:image/png"
_REMEDY = "pass the image folder that was swept, or inputs in the order of the data"
Look = Callable[[int, str], "str | None"]


def picture_sections(ranking: pd.DataFrame, data: Any) -> list[Section]:
    """The errors of a ranking, as far as their examples can be shown; nothing where they cannot.

    Args:
        ranking: Columns `id`, `uncertainty` and `correct`; `label` and `prediction` where they are known.
        data: An image folder, inputs `[n, channels, height, width]`, or None.

    Raises:
        BadInput: For data that these examples do not come from.
    """
    wrong = ~ranking.correct.to_numpy(bool)
    if not wrong.any() or "id" not in ranking:
        return []
    ids = [str(name) for name in ranking.id]
    looks = _looks(ids, data)
    texts = looks is None and data is None and np.mean([_is_text(name) for name in ids]) > 0.5
    if looks is None and not texts:
        return []
    uncertainty = ranking.uncertainty.to_numpy(float)
    ranks = np.array([(uncertainty > value).mean() for value in uncertainty])
    order = [int(at) for at in np.argsort(ranks, kind="stable") if wrong[at]]
    chosen = dict.fromkeys([*order[:_SHOWN], *order[-_SHOWN:]])
    found = [_example(at, ids[at], float(ranks[at]), ranking, looks) for at in chosen]
    gallery = Pictures("Errors", found, [round(float(ranks[at]), 4) for at in order], texts=bool(texts))
    lead = "Move the share that is deferred: errors cross over, the most uncertain first."
    return [Section("Errors that would pass, and those that would be deferred", [gallery], lead)]


def _example(at: int, name: str, rank: float, ranking: pd.DataFrame, looks: Look | None) -> Example:
    row = ranking.iloc[at]
    said = name.rpartition("/")[0].rpartition("/")[2] or "wrong"  # the folder of a picture is its class
    if "label" in ranking and "prediction" in ranking:
        names = [row.get("true_class", row["label"]), row.get("predicted_class", row["prediction"])]
        said = f"{names[0]}, taken for {names[1]}"
    detail = f"uncertainty: top {max(1, round(100 * rank))} %"
    if looks is None:
        return Example(cut(name, 80), said, detail, rank, text=cut(" ".join(name.split()), _TEXT))
    image = looks(at, name)
    return Example(cut(name, 80), said, detail, rank, image, small=image is not None and image.startswith(_EXACT))


def _is_text(name: str) -> bool:
    return " " in name.strip() and not os.path.splitext(name)[1][1:].isalnum()


def _looks(ids: Sequence[str], data: Any) -> Look | None:
    """What makes a picture of an example, or None."""
    if data is None:
        return None
    if isinstance(data, str | Path):
        folder = Path(data)
        if not folder.is_dir():
            raise BadInput("data must be the image folder of the examples", "data", str(data), _REMEDY)
        if not any(_inside(folder, name) for name in ids[:50]):
            raise BadInput(
                "data must hold the examples of the run", "data", Phrase(f"{data} without {ids[0]!r}"), _REMEDY
            )
        return lambda at, name: _of_file(_inside(folder, name))
    inputs = data[0] if isinstance(data, tuple | list) else data
    values = np.asarray(inputs.detach().cpu() if hasattr(inputs, "detach") else inputs)
    if values.ndim != 4 or len(values) != len(ids):
        got = Phrase(f"{list(values.shape)} for {len(ids)} examples")
        raise BadInput("data must be one picture per example", "data", got, _REMEDY)
    return lambda at, name: _of_array(values[at])


def _inside(folder: Path, name: str) -> Path | None:
    """The file of an example; None where there is none, or where it would lie outside of the folder."""
    path = folder / name
    outside = os.path.isabs(name) or os.pardir in Path(name).parts
    return None if outside or not path.is_file() else path


def _of_file(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        with Image.open(path) as opened:
            return _as_uri(opened.convert("RGB"))
    except OSError:
        return None


def _of_array(values: np.ndarray) -> str:
    shown = values.astype(float)
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    scaled = (255 * np.nan_to_num((shown - low) / ((high - low) or 1.0))).astype(np.uint8)
    plane = scaled[:3].transpose(1, 2, 0) if len(scaled) >= 3 else np.repeat(scaled[:1].transpose(1, 2, 0), 3, 2)
    return _as_uri(Image.fromarray(plane))


def _as_uri(image: Image.Image) -> str:
    image.thumbnail((_SIDE, _SIDE))
    into = io.BytesIO()
    if max(image.size) <= _SMALL:
        image.save(into, "PNG")
        kind = "png"
    else:
        image.save(into, "JPEG", quality=82)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(into.getvalue()).decode('ascii')}"
