"""Trials: one input after another, each with little time and memory, and what is wrong with how it was met."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import logging
import random
import resource
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dropscope.errors import DropscopeError

SECONDS = 20  # of processor time for one input
MEMORY = 3 << 30  # bytes that an input may take beyond those that the process has already
_LONGEST = 1500  # characters of an error

Try = Callable[[random.Random], object]


@dataclass(frozen=True)
class Target:
    """Something that reads.

    Attributes:
        name: What it reads.
        share: How many of a hundred inputs it gets.
        prepare: From an empty folder to a function that makes an input with a generator and has it read.
    """

    name: str
    share: float
    prepare: Callable[[Path], Try]


@dataclass(frozen=True)
class Outcome:
    """How an input was met: `problem` is empty where it was used or refused in one line; `detail` says more."""

    refused: bool
    problem: str = ""
    detail: str = ""


def attempt(function: Callable[[], object]) -> Outcome:
    """Calls a function that may refuse, in one line; whatever else it raises, warns of or prints is a problem."""
    said = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", ResourceWarning)  # a file that an error left open is closed with it
            function()
    except DropscopeError as error:
        text = str(error)
        if len(text) > _LONGEST or "\n" in text:
            return Outcome(refused=True, problem="an error of several lines, or a long one", detail=text[:2000])
        return Outcome(refused=True)
    except Hang as error:
        return Outcome(refused=False, problem=f"hangs {_place(error)}", detail=_traceback(error))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return Outcome(refused=False, problem=f"{type(error).__name__} {_place(error)}", detail=_traceback(error))
    return Outcome(refused=False)


def _place(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/dropscope/" in f.filename]
    return f"at {Path(frames[-1].filename).name}:{frames[-1].name}" if frames else ""


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-3000:]


class Hang(BaseException):
    """Raised in what takes too long."""


@contextlib.contextmanager
def limited(seconds: float = SECONDS) -> Iterator[None]:
    """Ends what takes more processor time, or much more time; where that is deaf to signals, the process too."""

    def ring(*_: object) -> None:
        raise Hang

    before = [signal.signal(number, ring) for number in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, seconds, 5)
    signal.setitimer(signal.ITIMER_REAL, 20 * seconds, 5)
    faulthandler.dump_traceback_later(25 * seconds, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        for number, handler in zip((signal.SIGPROF, signal.SIGALRM), before, strict=True):
            signal.signal(number, handler)


def limit_memory(more: int = MEMORY) -> None:
    """Lets this process have so many bytes more than it has."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + more, taken + more))


def generator(target: str, seed: int, number: int) -> random.Random:
    """What makes an input: the same for the same target, seed and number, everywhere."""
    return random.Random(f"{target} {seed} {number}")


def held() -> dict[str, int]:
    """What this process holds: file descriptors and threads, after a collection."""
    gc.collect()
    return {"descriptors": len(list(Path("/proc/self/fd").iterdir())), "threads": threading.active_count()}


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Without the log lines that say what is damaged, and computed again."""
    logger = logging.getLogger("dropscope")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def rewrite(path: Path, content: bytes) -> Path:
    """Writes bytes to a file."""
    path.write_bytes(content)
    return path


def use(*values: Any) -> None:
    """Has values printed, as a user would see them."""
    for value in values:
        str(value)
