"""Progress of long work: a bar with pace and time left on a terminal or in a notebook, lines now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_QUIET_SECONDS = 2.0  # work shorter than this shows nothing
_LINE_SECONDS = 15.0
_UPDATE_SECONDS = 0.25  # between two looks of the line in a notebook
_BAR_WIDTH = 30


def format_count(number: float) -> str:
    """A count that a person reads at a glance.

    >>> format_count(10_000_000_000), format_count(1234), format_count(7)
    ('10.0 G', '1.2 k', '7')
    """
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f} {letter}"
    return f"{number:.0f}"


def format_pace(count: float, seconds: float, unit: str) -> str:
    """The pace of work, per second, minute or hour: the first that gives at least 1.

    >>> format_pace(5e9, 2.0, "predictions"), format_pace(4, 60.0, "networks"), format_pace(1, 1800.0, "networks")
    ('2.5 G predictions/s', '4.0 networks/min', '2.0 networks/h')
    """
    rate = count / max(seconds, 1e-9)
    if rate >= 1:
        return f"{format_count(rate)} {unit}/s"
    return f"{60 * rate:.1f} {unit}/min" if 60 * rate >= 1 else f"{3600 * rate:.1f} {unit}/h"


def format_duration(seconds: float) -> str:
    """A duration that a person reads at a glance.

    >>> format_duration(44.6), format_duration(2488), format_duration(9000)
    ('45 s', '41 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


@contextmanager
def track(
    what: str, total: int, unit: str = "predictions", *, show: bool | None = None
) -> Iterator[Callable[[int], None]]:
    """Shows progress while the block runs; yields `tick(count)`, to be called after each `count` units of work.

    Args:
        what: The work, in a word or two.
        total: The units of work in all. 0 shows nothing.
        unit: What is counted.
        show: None for a bar in a notebook and on a terminal, and lines where standard error is neither; False for
            nothing.
    """
    if show is False or total <= 0:
        yield lambda count: None
    elif (display := _notebook_display()) is not None:
        yield from _updated_line(what, total, unit, display)
    elif sys.stderr.isatty():
        yield from _bar(what, total, unit)
    else:
        yield _lines(what, total, unit)


def _bar(what: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    # Imported where a bar is drawn: rich.progress draws from Python's global random state when it is imported.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[rate]}"),
    )
    started = time.monotonic()
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total, rate="")

        def tick(count: int) -> None:
            done = bar.tasks[task].completed + count
            rate = format_pace(done, time.monotonic() - started, unit) if done else ""
            bar.update(task, advance=count, rate=rate)

        yield tick


def _notebook_display() -> Callable[..., Any] | None:
    """What shows something in the notebook that this process is the kernel of; None elsewhere."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    return display


def _updated_line(what: str, total: int, unit: str, display: Callable[..., Any]) -> Iterator[Callable[[int], None]]:
    """One line of text that is written over: it needs no widgets. Work that is soon over shows nothing."""
    started = last = time.monotonic()
    done = 0
    handle: Any = None

    def show(text: str) -> None:
        nonlocal handle
        if handle is None:
            handle = display({"text/plain": text}, raw=True, display_id=True)
        else:
            handle.update({"text/plain": text}, raw=True)

    def tick(count: int) -> None:
        nonlocal done, last
        done += count
        now = time.monotonic()
        taken = now - started
        if done and taken > _QUIET_SECONDS / 2 and (handle is None or now - last > _UPDATE_SECONDS):
            last = now
            filled = round(_BAR_WIDTH * min(done / total, 1.0))
            bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
            left = format_duration(max(total - done, 0) * taken / done)
            show(f"{what} {bar} {min(done / total, 1.0):.0%}, {format_pace(done, taken, unit)}, {left} left")

    try:
        yield tick
    finally:
        if handle is not None:
            taken = time.monotonic() - started
            ended = "" if done >= total else f" ({done / total:.0%})"
            show(f"{what}: {format_count(done)} {unit} in {format_duration(taken)}{ended}")


def _lines(what: str, total: int, unit: str) -> Callable[[int], None]:
    started = last = time.monotonic()
    done = 0

    def tick(count: int) -> None:
        nonlocal done, last
        done += count
        now = time.monotonic()
        if done and now - started > _QUIET_SECONDS and now - last > _LINE_SECONDS:  # no pace before anything is done
            last = now
            taken = now - started
            pace, left = format_pace(done, taken, unit), format_duration((total - done) * taken / done)
            print(f"{what}: {done / total:.0%}, {pace}, {left} left", file=sys.stderr, flush=True)

    return tick
