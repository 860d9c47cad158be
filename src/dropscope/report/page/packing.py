"""Numbers and texts packed for a page: two bytes a number, deflated, in base64.

Owns how many columns a page can afford. The reader is explorer.js.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dropscope.report.page.content import Packed, PackedColumn

UNKNOWN = 65535


def pack(content: bytes) -> Packed:
    """Deflated bytes in base64.

    >>> pack(b"a" * 1000).bytes
    1000
    """
    return Packed(base64.b64encode(zlib.compress(content, 9)).decode("ascii"), len(content))


def pack_texts(texts: Sequence[str]) -> Packed:
    """Texts, one a line."""
    return pack("\n".join(text.replace("\n", " ") for text in texts).encode())


def pack_numbers(values: NDArray[np.floating], *, name: str, title: str, direction: str, form: str,
                 per: str) -> PackedColumn:  # fmt: skip
    """A column; the first bytes of all numbers stand before the second ones, which packs better.

    >>> column = pack_numbers(np.array([0.0, 1.0, np.nan]), name="a", title="a", direction="lower", form="", per="row")
    >>> zlib.decompress(base64.b64decode(column.packed.data)).hex(" ")
    '00 ff ff 00 fe ff'
    """
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    scale = (UNKNOWN - 1) / (high - low) if high > low else 0.0
    codes = np.where(np.isfinite(values), np.round((np.nan_to_num(values) - low) * scale), UNKNOWN).astype(np.uint16)
    planes = np.concatenate([codes >> 8, codes & 255]).astype(np.uint8)
    return PackedColumn(name, title, direction, form, "placement" if per == "placement" else "row", low, high,
                        pack(planes.tobytes()))  # fmt: skip
