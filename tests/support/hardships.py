"""Hardships that a run may meet: a full disk, a folder that is read-only, damaged files, Ctrl-C, little memory.

Each is met by a sweep of 999 placements in a process of its own. Afterwards the same sweep is run to its end in the
same folder, and its rows must be those of a run that met nothing.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import torch
from torch import nn

import dropscope as ds
from dropscope.errors import BadInput

NOBODY = 65534
TABLES = ("rows", "baseline", "intervals", "examples")


def small_sweep(out: Path | None = None) -> ds.Run:
    """Ten parts, in well under a second."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    inputs = torch.randn(24, 8)
    data = inputs, (net(inputs).argmax(1) + (torch.arange(24) % 3 == 0)) % 3
    grid = ds.PlacementGrid(["0", "2", "4@input"])
    return ds.sweep(net, grid, data, passes=3, keep="top:2", progress=False, out=out)


def same(first: ds.Run, second: ds.Run) -> None:
    """Whether two runs found the same."""
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(first, name), getattr(second, name))


def in_child(
    work: Callable[[], object],
    *,
    before: Callable[[], object] = lambda: None,
    after: Callable[[int], object] = lambda child: None,
) -> tuple[int, str]:
    """Runs something in a process of its own: its exit code (minus the signal that ended it) and what it raised.

    Args:
        work: What to run.
        before: Runs in the child first: limits, another user.
        after: Runs here meanwhile, with the child's number.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        code = 0
        os.close(reader)
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            before()
            work()
        except BaseException as error:
            code = 2 if isinstance(error, BadInput) else 130 if isinstance(error, KeyboardInterrupt) else 1
            text = "".join(traceback.format_exception_only(error))
            os.write(writer, text.encode(errors="replace")[:4000])
        finally:
            os._exit(code)
    os.close(writer)
    after(child)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    status = os.waitpid(child, 0)[1]
    return (-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)), said


# --- hardships --------------------------------------------------------------------------------------------------------


@contextmanager
def full_disk(after: int) -> Any:
    """No space left on the device, once so many files have been written."""
    written = [0]
    flush = os.fsync

    def fsync(handle: int) -> None:
        written[0] += 1
        if written[0] > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(handle)

    with mock.patch("os.fsync", fsync):
        yield


def limit_files(size: int) -> None:
    """No file of this process may be longer, as on a disk with a quota."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def limit_memory(more: int) -> None:
    """Lets this process have so many bytes more than it has."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + more, taken + more))


def become_nobody() -> None:
    """Takes the rights of root away from this process, for which nothing is read-only."""
    if os.getuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def interrupt(child: int, seconds: float) -> None:
    """Ctrl-C after so many seconds."""
    time.sleep(seconds)
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGINT)


def meet_full_disk(root: Path, draw: random.Random, whole: ds.Run) -> str:
    """After a random number of files, or with files of a random length at most."""
    out = root / "run"
    if draw.random() < 0.5:
        count = draw.randrange(12)

        def work() -> None:
            with full_disk(count):
                small_sweep(out)

        code, said = in_child(work)
        what = f"full after {count} files"
    else:
        size = draw.choice((500, 5_000, 20_000, 60_000))
        code, said = in_child(lambda: small_sweep(out), before=lambda: limit_files(size))
        what = f"files of {size} bytes at most"
    same(small_sweep(out), whole)
    return f"{what}: {_ending(code, said)}"


def meet_read_only(root: Path, draw: random.Random, whole: ds.Run) -> str:
    """A folder that must not be written to is refused, new or with a run in it; a finished run is read from it."""
    out = root / "run"
    small_sweep(out)
    parts = sorted((out / "rows").iterdir())
    for part in draw.sample(parts, draw.randint(0, 3)):
        part.unlink()
    finished = len(parts) == len(list((out / "rows").iterdir()))
    for path in (out / "rows", out, root):
        path.chmod(0o555)
    try:
        code, said = in_child(lambda: small_sweep(out), before=become_nobody)
        fresh, words = in_child(lambda: small_sweep(root / "new"), before=become_nobody)
    finally:
        for path in (root, out, out / "rows"):
            path.chmod(0o755)
    assert fresh == 2, words
    assert (code == 0) == finished, said
    same(small_sweep(out), whole)
    return f"read-only, {'finished' if finished else 'not finished'}: {_ending(code, said)}"


def meet_damage(root: Path, draw: random.Random, whole: ds.Run) -> str:
    """A part or table that is cut, or has a bit flipped, is computed again."""
    out = root / "run"
    small_sweep(out)
    path = draw.choice(sorted(path for path in out.rglob("*.parquet")))
    content = bytearray(path.read_bytes())
    at = draw.randrange(len(content))
    if draw.random() < 0.7:
        content[at] ^= 1 << draw.randrange(8)
    else:
        del content[at:]
    path.write_bytes(content)
    same(small_sweep(out), whole)
    return "damage: computed again"


def meet_interrupt(root: Path, draw: random.Random, whole: ds.Run) -> str:
    """Ctrl-C at a random moment of the run."""
    out = root / "run"
    seconds = draw.random() * 2
    code, said = in_child(lambda: small_sweep(out), after=lambda child: interrupt(child, seconds))
    assert code in (0, 130), said
    same(small_sweep(out), whole)
    assert not list(out.rglob(".part-*"))
    return f"Ctrl-C: {_ending(code, said)}"


def meet_little_memory(root: Path, draw: random.Random, whole: ds.Run) -> str:
    """An error or a result, never wrong rows."""
    out = root / "run"
    more = draw.choice((1 << 20, 8 << 20, 64 << 20, 512 << 20))
    code, said = in_child(lambda: small_sweep(out), before=lambda: limit_memory(more))
    same(small_sweep(out), whole)
    return f"{more >> 20} MB of memory: {_ending(code, said)}"


def _ending(code: int, said: str) -> str:
    line = said.strip().splitlines()[0][:80] if said.strip() else ""
    return "finished" if code == 0 else f"ended ({code}) {line}"


HARDSHIPS: dict[str, Callable[[Path, random.Random, ds.Run], str]] = {
    "full disk": meet_full_disk,
    "read-only folder": meet_read_only,
    "damaged files": meet_damage,
    "Ctrl-C": meet_interrupt,
    "little memory": meet_little_memory,
}


def meet(name: str, root: Path, seed: int, whole: ds.Run) -> str:
    """Meets a hardship in a folder below `root`, which is removed; what became of it."""
    folder = root / "hardship"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o755)
    root.chmod(0o755)
    said = HARDSHIPS[name](folder, random.Random(f"{name} {seed}"), whole)
    shutil.rmtree(folder)
    return said
