"""Mutation: sound bytes, JSON values and cells of tables made unsound, by a generator that is seeded."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Iterator, Sequence
from typing import Any

_HUGE = "@digits@"  # stands for a number of so many digits that Python does not write it
_DEEP = "@deep@"
WORDS = (
    "", " ", "\0", "a", "NaN", "nan", "inf", "-inf", "null", "None", "true", "0", "-1", "1e400", "1.5", "0x10", "١",
    "9" * 25, "../../etc/passwd", "/etc/passwd", "a/../../b", "~", "file://x", "C:\\x", "é", "e\u0301", "\u202e", "🜁",
    "\ud800", "a,b", 'a"b', "a\nb", "a\r\nb", "{}", "%s%n", "$(id)", "=1+1", "x" * 300, "x" * 5000, "a" * 255,
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 3, 7, 255, 256, 65535, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**19, 10**30,
    -(2**31), -(2**63), 0.5, -0.5, 1e-320, 1e308, -1e308, 1.0000001, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip


def odd_value(draw: random.Random) -> Any:
    """A value that is seldom expected, of any type that JSON has."""
    match draw.randrange(9):
        case 0 | 1:
            return draw.choice(WORDS)
        case 2 | 3 | 4:
            return draw.choice(NUMBERS)
        case 5:
            return draw.choice((None, True, False, _HUGE, _DEEP))
        case 6:
            return [odd_value(draw) for _ in range(draw.randrange(4))]
        case 7:
            return {draw.choice(WORDS): odd_value(draw) for _ in range(draw.randrange(3))}
        case _:
            return draw.choice(([], {}, [[]], [None], {"a": None}, [0, 1], ["a"], [[1, 2]], {"0": "a"}))


def changed(value: Any, draw: random.Random) -> Any:
    """A JSON value with a few places replaced, left out, doubled or exchanged."""
    root = {"": copy.deepcopy(value)}
    for _ in range(draw.choice((1, 1, 1, 2, 2, 4, 8))):
        places = list(_places(root))
        holder, key = draw.choice(places)
        match draw.randrange(8):
            case 0 if holder is not root:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.insert(key, copy.deepcopy(holder[key]))
            case 2 if isinstance(holder, dict) and holder is not root:
                holder[draw.choice(WORDS)] = holder[key]
            case 3:
                other, name = draw.choice(places)
                holder[key] = copy.deepcopy(other[name])
            case 4 if isinstance(holder[key], int | float):
                holder[key] = _near(holder[key], draw)
            case 5 if isinstance(holder[key], str):
                holder[key] = changed_text(holder[key], draw)
            case 6:
                holder[key] = draw.choice(([holder[key]], {"a": holder[key]}, str(holder[key])[:300]))
            case _:
                holder[key] = odd_value(draw)
    return root.get("")


def _near(number: float, draw: random.Random) -> float:
    if not abs(number) < 1e300:
        return 0
    return draw.choice((-number, number + 1, number - 1, number * 1e6, number / 7, int(min(abs(number), 1e18))))


def _places(root: Any) -> Iterator[tuple[Any, Any]]:
    keys = root.keys() if isinstance(root, dict) else range(len(root)) if isinstance(root, list) else ()
    for key in list(keys):
        yield root, key
        yield from _places(root[key])


def written(value: Any, draw: random.Random) -> bytes:
    """A value as JSON, now and then with something that Python would not write."""
    text = json.dumps(value, ensure_ascii=draw.random() < 0.7, indent=draw.choice((None, None, 1)))
    text = text.replace(f'"{_HUGE}"', "1" * draw.choice((400, 5000)))
    text = text.replace(f'"{_DEEP}"', "[" * draw.choice((50, 100_000)))
    return text.encode("utf-8", "surrogatepass")


def json_document(value: Any, draw: random.Random) -> bytes:
    """A JSON document with changed values, or with damaged bytes."""
    if draw.random() < 0.75:
        return written(changed(value, draw), draw)
    return damaged(json.dumps(value).encode(), draw, (b"null", b"{", b"]", b'"', b"1e999", b"\\ud800", b"NaN"))


def changed_text(text: str, draw: random.Random) -> str:
    """A text with a few characters replaced, left out, doubled or put in."""
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(text) + 1)
        end = min(len(text), at + draw.choice((0, 1, 1, 2, 8)))
        piece = draw.choice((*WORDS, "=", "@", "#", "*", ".", ",", ";", ":", "-", "(", "0.5", text[at:end] * 2, ""))
        text = text[:at] + piece + text[end:]
    return text[:20_000]


def damaged(content: bytes, draw: random.Random, tokens: Sequence[bytes] = ()) -> bytes:
    """Bytes that are flipped, cut, put in, moved, or overwritten by numbers that headers do not expect."""
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
        # Half of the damage is done where headers are.
        most = len(data) if draw.random() < 0.5 else min(len(data), 400)
        at = draw.randrange(most + 1)
        length = draw.choice((1, 1, 2, 4, 8, 30, 200))
        match draw.randrange(9):
            case 0 | 1 if at < len(data):
                data[at] ^= 1 << draw.randrange(8)
            case 2 if at < len(data):
                data[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
            case 3:
                del data[at : at + length]
            case 4:
                data[at:at] = draw.randbytes(length)
            case 5:
                number = int(draw.choice(NUMBERS[:19])) & (2**64 - 1)
                raw = struct.pack(draw.choice("<>") + "Q", number)
                raw = raw[: draw.choice((2, 4, 8))] if draw.random() < 0.5 else raw[-draw.choice((2, 4, 8)) :]
                data[at : at + len(raw)] = raw
            case 6:
                other = draw.randrange(len(data) + 1)
                data[at:at] = data[other : other + length]
            case 7 if tokens:
                token = draw.choice(tokens)
                data[at : at + draw.choice((0, len(token)))] = token
            case _:
                del data[draw.randrange(len(data) + 1) :]
    return bytes(data)


def changed_rows(rows: Sequence[dict[str, Any]], draw: random.Random) -> list[dict[str, Any]]:
    """Rows of a table with odd cells, odd names of columns, and rows that are missing or doubled."""
    made = [dict(row) for row in rows]
    for _ in range(draw.choice((1, 1, 2, 4))):
        row = draw.choice(made) if made else {}
        names = list(row)
        match draw.randrange(7):
            case 0 if names:
                old, new = draw.choice(names), draw.choice((*WORDS, *names))
                made = [{new if name == old else name: value for name, value in each.items()} for each in made]
            case 1 if names:
                gone = draw.choice(names)
                made = [{name: value for name, value in each.items() if name != gone} for each in made]
            case 2 if made:
                made = [draw.choice(made) for _ in range(draw.choice((0, 1, len(made), 40)))]
            case 3 if names:
                name, value = draw.choice(names), odd_value(draw)
                made = [{**each, name: value} for each in made]
            case _ if names:
                row[draw.choice(names)] = odd_value(draw)
    return made
