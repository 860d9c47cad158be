"""Files of damaged bytes: each must be read, or refused with one clear line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hypothesis import strategies as st

Damage = Sequence[tuple[int, bytes]]


def damages(longest: int) -> st.SearchStrategy[Damage]:
    """Up to four patches of a file, each at a place below `longest`."""
    return st.lists(st.tuples(st.integers(0, longest), st.binary(max_size=6)), max_size=4)


def write_damaged(folder: Path, suffix: str, content: bytes, damage: Damage) -> Path:
    """A file of the content, patched: half of each patch replaces what is there, the other half is put in."""
    for where, patch in damage:
        place = where % (len(content) + 1)
        content = content[:place] + patch + content[place + len(patch) // 2 :]
    path = folder / f"a.{suffix}"
    path.write_bytes(content)
    return path
