"""Progress of long work: a bar with pace and time left on a terminal or in a notebook, lines now and then elsewhere."""

from __future__ import annotations

import sys
import threading
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
def stage(what: str, *, show: bool | None = None) -> Iterator[None]:
    """Announces work of unknown length while the block runs; without a terminal, only work that is not short.

    Args:
        what: The work, as in "tracing the model".
        show: None announces it on standard error; False does not.
    """
    if show is False:
        yield
    elif sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status(what):
            yield
    else:
        started = time.monotonic()
        stream = sys.stderr if _notebook_display() is None else sys.stdout  # a notebook shows errors in red
        timer = threading.Timer(_QUIET_SECONDS, lambda: print(f"{what} …", file=stream, flush=True))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            taken = time.monotonic() - started
            if taken > _LINE_SECONDS:
                print(f"{what}: {format_duration(taken)}", file=stream, flush=True)


@contextmanager
def track(
    what: str,
    total: int,
    unit: str = "predictions",
    *,
    show: bool | None = None,
    then: Callable[[float], float] = lambda whole: 0.0,
) -> Iterator[Callable[[int], None]]:
    """Shows progress while the block runs; yields `tick(count)`, to be called after each `count` units of work.

    Args:
        what: The work, in a word or two.
        total: The units of work in all. 0 shows nothing.
        unit: What is counted.
        show: None for a bar in a notebook and on a terminal, and lines where standard error is neither; False for
            nothing.
        then: Seconds of the work that comes after this, from those that this takes in all. The time left has them too.
    """
    if show is False or total <= 0:
        yield lambda count: None
    elif (display := _notebook_display()) is not None:
        yield from _updated_line(_Pace(total, unit, then), what, display)
    elif sys.stderr.isatty():
        yield from _bar(_Pace(total, unit, then), what)
    else:
        yield _lines(_Pace(total, unit, then), what)


class _Pace:
    """How much is done, how fast, and how long the rest takes."""

    def __init__(self, total: int, unit: str, then: Callable[[float], float]) -> None:
        self.total, self.unit, self.then = total, unit, then
        self.started, self.done = time.monotonic(), 0

    @property
    def share(self) -> float:
        return min(self.done / self.total, 1.0)

    def __str__(self) -> str:
        if not self.done:  # no pace before anything is done
            return ""
        taken = time.monotonic() - self.started
        whole = taken * self.total / self.done
        left = max(0.0, whole - taken) + self.then(whole)
        return f"{format_pace(self.done, taken, self.unit)}, {format_duration(left)} left"


def _bar(pace: _Pace, what: str) -> Iterator[Callable[[int], None]]:
    # Imported where a bar is drawn: rich.progress draws from Python's global random state when it is imported.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[pace]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=pace.total, pace="")

        def tick(count: int) -> None:
            pace.done += count
            bar.update(task, advance=count, pace=str(pace))

        yield tick


def _notebook_display() -> Callable[..., Any] | None:
    """What shows something in the notebook that this process is the kernel of; None elsewhere."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    return display


def _updated_line(pace: _Pace, what: str, display: Callable[..., Any]) -> Iterator[Callable[[int], None]]:
    """One line of text that is written over: it needs no widgets. Work that is soon over shows nothing."""
    last = pace.started
    handle: Any = None

    def show(text: str) -> None:
        nonlocal handle
        if handle is None:
            handle = display({"text/plain": text}, raw=True, display_id=True)
        else:
            handle.update({"text/plain": text}, raw=True)

    def tick(count: int) -> None:
        nonlocal last
        pace.done += count
        now = time.monotonic()
        late = now - pace.started > _QUIET_SECONDS / 2
        if pace.done and late and (handle is None or now - last > _UPDATE_SECONDS):
            last = now
            filled = round(_BAR_WIDTH * pace.share)
            bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
            show(f"{what} {bar} {pace.share:.0%}, {pace}")

    try:
        yield tick
    finally:
        if handle is not None:
            taken = time.monotonic() - pace.started
            ended = "" if pace.done >= pace.total else f" ({pace.share:.0%})"
            show(f"{what}: {format_count(pace.done)} {pace.unit} in {format_duration(taken)}{ended}")


def _lines(pace: _Pace, what: str) -> Callable[[int], None]:
    last = pace.started

    def tick(count: int) -> None:
        nonlocal last
        pace.done += count
        now = time.monotonic()
        if pace.done and now - pace.started > _QUIET_SECONDS and now - last > _LINE_SECONDS:
            last = now
            print(f"{what}: {pace.share:.0%}, {pace}", file=sys.stderr, flush=True)

    return tick
