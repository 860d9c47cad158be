"""Workers: processes that run several units of work at once.

Units share nothing but the prepared volumes, and on a CPU all have the same number of threads (sums depend on it, and
training magnifies that), so order and number of workers change no row.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from dropscope.errors import BadInput, Phrase, first_line
from dropscope.progress import track
from dropscope.studies.segmentation_measures.experiments import Network
from dropscope.studies.segmentation_measures.preparation import PREPARED, read_prepared
from dropscope.studies.segmentation_measures.units import Tick, Work, count_steps, run_unit

_POLL = 1.0  # seconds between two looks at what the workers have done


def run_units(work: Work, units: Sequence[Network], workers: int, *, show: bool | None = None) -> pd.DataFrame:
    """Runs the units that are not finished, several at once; the rows of every experiment, in the order of the grid."""
    todo = [unit for unit in units if not all(work.rows_file(e).exists() for e in unit.experiments)]
    # The longest first, so that no worker is left with one at the end.
    todo.sort(key=lambda unit: -unit.n_train if work.regime.steps is None else 0)
    with track(f"{len(todo)} networks", sum(count_steps(work, unit) for unit in todo), "steps", show=show) as tick:
        if workers == 1 or len(todo) < 2:
            _run_here(work, todo, tick)
        else:
            _run_in_processes(work, todo, min(workers, len(todo)), tick)
    return pd.concat(
        [pd.read_parquet(work.rows_file(e)) for unit in units for e in unit.experiments], ignore_index=True
    )


def _run_here(work: Work, todo: Sequence[Network], tick: Tick) -> None:
    if not todo:
        return
    prepared = read_prepared(Path(work.folder) / PREPARED)
    with _threads(work.threads):
        for unit in todo:
            _result(lambda unit=unit: run_unit(work, unit, prepared, tick), 1)  # type: ignore[misc]


def _run_in_processes(work: Work, todo: Sequence[Network], workers: int, tick: Tick) -> None:
    spawning = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    steps, seen, stopped = spawning.Value("q", 0), 0, spawning.Event()
    with ProcessPoolExecutor(workers, spawning, _start_worker, (work, steps, stopped, os.getpid())) as pool:
        futures = [pool.submit(_run_unit_in_worker, unit) for unit in todo]
        waiting = set(futures)
        try:
            while waiting:
                finished, waiting = wait(waiting, timeout=_POLL, return_when=FIRST_COMPLETED)
                done = steps.value
                tick(done - seen)
                seen = done
                for future in finished:
                    _result(future.result, workers)
        finally:
            stopped.set()
            for future in futures:
                future.cancel()


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _result(result: Callable[[], str], workers: int) -> str:
    try:
        return result()
    except (torch.OutOfMemoryError, BrokenProcessPool) as error:
        what = f"workers must fit into memory ({first_line(error, 120)})"
        remedy = f"write workers={max(1, workers // 2)}, or a smaller batch or roi; finished networks are kept"
        raise BadInput(what, "workers", Phrase(str(workers)), remedy) from error


# Of a worker process: its work and volumes, read once, the steps of all workers, and whether they are to stop.
_worker: dict[str, Any] = {}


def _start_worker(work: Work, steps: Any, stopped: Any, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the study too, and that stops its workers
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    if work.threads:
        torch.set_num_threads(work.threads)
    _worker.update(work=work, prepared=read_prepared(Path(work.folder) / PREPARED), steps=steps, stopped=stopped)


def _exit_with_parent(parent: int, poll: float = _POLL) -> None:
    """Ends a worker whose study was killed: the next run would do the same unit beside it."""
    while os.getppid() == parent:
        time.sleep(poll)
    os._exit(1)


def _run_unit_in_worker(unit: Network) -> str:
    return run_unit(_worker["work"], unit, _worker["prepared"], _count_steps_done)


def _count_steps_done(count: int) -> None:
    if _worker["stopped"].is_set():
        raise InterruptedError("the study was stopped")
    with _worker["steps"].get_lock():
        _worker["steps"].value += count
