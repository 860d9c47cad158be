"""Progress of long work: a bar with rate and time left on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_QUIET_SECONDS = 2.0  # work shorter than this shows nothing
_LINE_SECONDS = 15.0


def humane(number: float) -> str:
    """A count a person reads at a glance.

    >>> humane(10_000_000_000), humane(1234), humane(7)
    ('10.0 G', '1.2 k', '7')
    """
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f} {letter}"
    return f"{number:.0f}"


@contextmanager
def progress(
    what: str, total: int, unit: str = "predictions", show: bool | None = None
) -> Iterator[Callable[[int], None]]:
    """Yields `tick(count)`. `show` None: a bar where standard error is a terminal, lines elsewhere; False: nothing."""
    if show is False or total <= 0:
        yield lambda count: None
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
            seconds = max(time.monotonic() - started, 1e-9)
            bar.update(task, advance=count, rate=f"{humane(done / seconds)} {unit}/s")

        yield tick


def _lines(what: str, total: int, unit: str) -> Callable[[int], None]:
    started = last = time.monotonic()
    done = 0

    def tick(count: int) -> None:
        nonlocal done, last
        done += count
        now = time.monotonic()
        if now - started > _QUIET_SECONDS and now - last > _LINE_SECONDS:
            last = now
            rate = done / (now - started)
            left = (total - done) / max(rate, 1e-9)
            print(
                f"{what}: {done / total:.0%}, {humane(rate)} {unit}/s, {left:.0f} s left", file=sys.stderr, flush=True
            )

    return tick
