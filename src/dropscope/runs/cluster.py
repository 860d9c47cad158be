"""A Ray cluster, or as many processes of this machine: tasks that share something large, run wherever there is room.

Owns everything that knows Ray: connecting, what a task declares, retries, and progress over all workers. What the tasks
have in common is put into the object store once, and read once by each process that works on them. Nothing here knows
what a task does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dropscope.checks import check_count
from dropscope.errors import BadInput, DropscopeError, MissingExtra, Phrase, first_line

log = logging.getLogger("dropscope")

Tick = Callable[[int], None]
Task = Callable[[Any, Any, Tick], Any]  # of what all have in common, an item, and a tick

_POLL = 0.5  # seconds between two looks at what the workers have done
_ATTEMPTS = 3  # at a task that raises
_LOST = 10  # attempts at a task whose worker or node is lost
_FORMS = "write cluster='auto' or cluster='ray://host:10001', or workers=2 for this machine alone"


@dataclass(frozen=True)
class Needs:
    """What a task declares."""

    cpus: int = 1
    gpus: int = 0
    memory: int = 0  # bytes


class Failure(NamedTuple):
    """A task that was given up: its error in a line, and how often it was tried."""

    error: str
    attempts: int


@dataclass(frozen=True)
class Crew:
    """Who works: the workers of this machine, or those of a cluster.

    Attributes:
        address: "auto" or "ray://…"; None for processes of this machine alone.
        workers: At most so many at once; None for as many as the cluster has room for.
    """

    address: str | None = None
    workers: int | None = None

    @classmethod
    def asked(cls, cluster: str | None, workers: int | None) -> Crew | None:
        """The crew that was asked for; None where this process works alone.

        Raises:
            BadInput: For an address of another form, a number that counts nothing, or where Ray is not installed.
        """
        if cluster is None and workers is None:
            return None
        if workers is not None:
            check_count(workers, "workers", 2)
        if cluster is not None and (not isinstance(cluster, str) or not _is_address(cluster)):
            raise BadInput("cluster must be 'auto' or an address of Ray", "cluster", cluster, _FORMS)
        _ray()
        return cls(cluster, workers)

    @contextlib.contextmanager
    def connected(self, *, gpu: bool = False) -> Iterator[Cluster]:
        """The cluster while the block runs. One that this process has joined already stays joined.

        Args:
            gpu: Whether each task takes a GPU.
        """
        ray = _ray()
        joined = ray.is_initialized()
        if not joined:
            self._join(ray)
        try:
            yield Cluster(ray, self.workers, self._cpus(ray, gpu=gpu))
        finally:
            if not joined:
                ray.shutdown()

    def _join(self, ray: Any) -> None:
        quiet = {"logging_level": "error", "log_to_driver": False, "configure_logging": True}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
        if self.address is None:
            assert self.workers is not None
            count = max(_cores(), self.workers)
            ray.init(address="local", num_cpus=count, include_dashboard=False, **quiet)
            return
        try:
            ray.init(address=self.address, **quiet)
        except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
            what = "cluster must be one that answers"
            remedy = "start it with ray start --head, or write workers=2 for this machine alone"
            raise BadInput(what, "cluster", Phrase(f"{self.address}: {first_line(error)}"), remedy) from error

    def _cpus(self, ray: Any, *, gpu: bool) -> int:
        """Of each task: an equal share where it is known how many there are, and no more threads than this process."""
        if self.workers is None or gpu:
            return 1
        share = int(ray.cluster_resources().get("CPU", 1)) // self.workers
        return max(1, min(share, torch.get_num_threads()))


class Cluster:
    """Runs tasks; made by `Crew.connected`."""

    def __init__(self, ray: Any, workers: int | None, cpus: int) -> None:
        self._ray, self._workers, self.cpus = ray, workers, cpus

    def run(
        self, task: Task, common: Any, items: Sequence[Any], needs: Needs, tick: Tick = lambda count: None
    ) -> Iterator[tuple[int, Any]]:
        """The number of each item with what `task(common, item, tick)` returned, or its `Failure`, as they come.

        Args:
            task: A function that a worker can import.
            common: Sent once to every node, and unpacked once by every process.
            items: In the order in which they are started: the largest first.
            needs: Of each task.
            tick: Called with what all workers have counted since the last call.

        Raises:
            BadInput: Where no node has what a task needs, or `common` cannot be sent.
        """
        ray = self._ray
        self._check_room(needs)
        box = [self._put(common)]
        remote = ray.remote(_execute).options(
            num_cpus=needs.cpus, num_gpus=needs.gpus, memory=needs.memory or None, max_retries=0
        )
        counter = _counter(ray)
        waiting, running = list(range(len(items)))[::-1], dict[Any, int]()
        attempts = [0] * len(items)
        progress = _Progress(tick, attempts)
        try:
            while waiting or running:
                while waiting and len(running) < (self._workers or len(items)):
                    number = waiting.pop()
                    attempts[number] += 1
                    key = number, attempts[number]
                    log.debug("task %s is started, attempt %s", items[number], attempts[number])
                    running[remote.remote(task, box, items[number], counter, key, needs.cpus)] = number
                done, _ = ray.wait(list(running), num_returns=1, timeout=_POLL)
                progress.update(_counts(ray, counter))
                for reference in done:
                    number = running.pop(reference)
                    found = self._result(reference, attempts[number])
                    if found is None:
                        waiting.append(number)
                    else:
                        yield number, found
        finally:
            for reference in running:
                with contextlib.suppress(Exception):
                    ray.cancel(reference, force=True)

    def _result(self, reference: Any, attempts: int) -> Any:
        """What a task returned, or its `Failure`; None where it is to be tried again."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except errors.RayTaskError as error:
            cause = error.cause if isinstance(getattr(error, "cause", None), BaseException) else error
            tried = isinstance(cause, DropscopeError) or attempts >= _ATTEMPTS  # ours would be raised again
            named = str(cause) if isinstance(cause, DropscopeError) else f"{type(cause).__name__}: {first_line(cause)}"
            return Failure(named, attempts) if tried else None
        except errors.RayError as error:  # the worker or its node is lost
            lost = f"{type(error).__name__}: {first_line(error)}"
            return Failure(lost, attempts) if attempts >= _LOST else None

    def _check_room(self, needs: Needs) -> None:
        wanted = {"CPU": needs.cpus, "GPU": needs.gpus, "memory": needs.memory}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in nodes):
            return
        largest = {name: max((node.get(name, 0) for node in nodes), default=0) for name in wanted}
        said = f"{largest['CPU']:.0f} CPUs, {largest['GPU']:.0f} GPUs and {largest['memory'] / 2**30:.1f} GiB at most"
        asked = f"{needs.cpus} CPUs, {needs.gpus} GPUs and {needs.memory / 2**30:.1f} GiB"
        remedy = "write a smaller memory=, or more workers=, which then have fewer CPUs each"
        raise BadInput(f"a node must have what a task needs ({asked})", "cluster", Phrase(said), remedy)

    def _put(self, common: Any) -> Any:
        """Sends code of the user's own by its text: nodes need not have its files."""
        from ray import cloudpickle

        own = [module for module in list(sys.modules.values()) if _is_own(module)]
        registered = []
        for module in own:
            with contextlib.suppress(ValueError):
                cloudpickle.register_pickle_by_value(module)
                registered.append(module)
        try:
            return self._ray.put(common)
        except (TypeError, AttributeError, RecursionError) as error:  # what pickling raises
            what = "model and data must be such that they can be sent to workers"
            remedy = "leave locks, open files and connections out of them, or leave workers and cluster out"
            raise BadInput(what, "workers", Phrase(first_line(error)), remedy) from error
        finally:
            for module in registered:
                cloudpickle.unregister_pickle_by_value(module)


class _Progress:
    """What all tasks have counted; what an attempt that was lost had counted is not told again."""

    def __init__(self, tick: Tick, attempts: Sequence[int]) -> None:
        self._tick, self._told, self._attempts = tick, 0, attempts

    def update(self, counts: dict[tuple[int, int], int]) -> None:
        done = sum(count for (number, attempt), count in counts.items() if attempt == self._attempts[number])
        if done > self._told:
            self._tick(done - self._told)
            self._told = done


# --- in the worker ----------------------------------------------------------------------------------------------------

_known: dict[Any, Any] = {}  # of this process: reference → what tasks have in common


def _execute(task: Task, box: list[Any], item: Any, counter: Any, key: tuple[int, int], threads: int) -> Any:
    """Runs one task; `box` hides the reference from Ray, which would unpack it for every task."""
    import ray

    torch.set_num_threads(threads)
    (reference,) = box
    if reference not in _known:
        _known.clear()
        _known[reference] = ray.get(reference)
    made, told = 0, time.monotonic()

    def tick(count: int) -> None:
        nonlocal made, told
        made += count
        if time.monotonic() - told > _POLL:
            told = time.monotonic()
            counter.set.remote(key, made)

    result = task(_known[reference], item, tick)
    counter.set.remote(key, made)
    return result


class _Counter:
    """An actor: how much each attempt at each task has counted."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], int] = {}

    def set(self, key: tuple[int, int], count: int) -> None:
        self._counts[key] = count

    def get(self) -> dict[tuple[int, int], int]:
        return self._counts


def _counter(ray: Any) -> Any:
    """On the node of this process, which is there for as long as it asks."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    return ray.remote(_Counter).options(num_cpus=0, scheduling_strategy=here).remote()


def _counts(ray: Any, counter: Any) -> dict[tuple[int, int], int]:
    try:
        return dict(ray.get(counter.get.remote(), timeout=5))
    except ray.exceptions.RayError:  # progress is not worth a run
        return {}


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("a run on several workers", "ray", "cluster") from error
    return ray


def _is_address(text: str) -> bool:
    host, _, port = text.removeprefix("ray://").rpartition(":")
    return text == "auto" or (text.startswith("ray://") and len(text) > 6) or (bool(host) and port.isdigit())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_INSTALLED = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib")})


def _is_own(module: Any) -> bool:
    """Whether a module is the user's, which a node may not have: a file that is no part of an installed package."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or module.__name__.partition(".")[0] in ("dropscope", "__main__"):
        return False
    return not str(Path(file).resolve()).startswith(_INSTALLED)
