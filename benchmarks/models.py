"""Dropscope against the loop a good engineer writes, over many models: how often is it faster, set-up and all?

    python benchmarks/models.py --device cpu|cuda [--only NAME …] [--loop-seconds 10] [--json FILE] [--quick]
    python benchmarks/models.py --device cuda --claims [--weights FILE]

Without `--claims`, over the architectures of the tests (`tests/support/architectures`) in a larger size: one site at a
time, a group, the last site. With it, the named claims of benchmarks/README.md at their full sizes. A ratio is the time
of the hand-written loop (`hand_loop.py`) ÷ ours, from one run, in turns, the best of two rounds where there is time.
Ours is the engine that "auto" picks; its set-up (sites, audit, capture, check against the loop) is in a column of its
own. "With set-up" adds it and the first run, kernels compiled. A long hand-written loop runs on some of its placements,
and its time is scaled. "After 10 s" is computed: the ratio for so many passes that the hand-written loop takes 10 s.
On a GPU the loop runs twice: as torch comes (TF32 in convolutions), and in true fp32, as ours does unless
`--precision tf32` is given.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import logging
import multiprocessing
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cases import Case, claims, zoo_cases
from dropscope import measures
from dropscope.engine import Engine, Session, choose_engine, open_session
from dropscope.model import Call
from dropscope.placement import as_placement
from hand_loop import HandLoop
from timing import Clock, machine, ratio, table

HEAD = [
    "case", "engine", "set-up, s", "ours, s", "by hand, s", "ratio", "by hand in fp32, s", "ratio", "with set-up",
    "after 10 s", "mean bald, both", "bar",
]  # fmt: skip


@dataclass
class Record:
    """What was measured of a case, in seconds."""

    case: str
    kind: str
    engine: str
    placements: int
    passes: int
    examples: int
    setup: float
    first: float  # run of ours, with kernels compiled
    ours: float
    hand: float
    hand_fp32: float | None
    timed: int  # placements that the hand-written loop ran
    rounds: int
    bald: tuple[float, float]
    bar: float | None
    approximate: list[str] = field(default_factory=list)

    @property
    def whole(self) -> float:
        """With set-up and the first run, as one call costs it."""
        return self.hand / (self.setup + self.first)

    @property
    def after_ten_seconds(self) -> float:
        """With set-up, were there so many passes that the hand-written loop takes 10 s or more."""
        more = max(1.0, 10 / self.hand)
        return more * self.hand / (self.setup + max(0.0, self.first - self.ours) + more * self.ours)

    def row(self) -> list[str]:
        hand = f"{self.hand:.2f}" + ("" if self.timed == self.placements else f" ({self.timed} of {self.placements})")
        fp32 = ["", ""] if self.hand_fp32 is None else [f"{self.hand_fp32:.2f}", ratio(self.hand_fp32 / self.ours)]
        bar = "" if self.bar is None else f"{self.bar:g}× {'met' if self.hand / self.ours >= self.bar else 'missed'}"
        return [
            self.case, self.engine, f"{self.setup:.2f}", f"{self.ours:.3f}", hand, ratio(self.hand / self.ours), *fp32,
            ratio(self.whole), ratio(self.after_ten_seconds), " / ".join(f"{b:.4f}" for b in self.bald), bar,
        ]  # fmt: skip


class Hand:
    """The loop of a case, written by hand."""

    def __init__(self, case: Case, device: torch.device, clock: Clock) -> None:
        model, inputs, more = case.build()
        session = opened(case, model.to(device), inputs, more, device)
        half = case.precision == "bf16"
        dtype = torch.float16 if half and device.type == "cuda" else torch.bfloat16 if half else torch.float32
        outputs = session.outputs if callable(session.outputs) else None
        twin = copy.deepcopy(session.model).to(dtype).eval()
        self._loop = HandLoop(twin, batches(inputs, case.batch_size, device, dtype), case.passes, outputs)
        self._placements = session.resolve([as_placement(text) for text in case.placements(session)])
        self._device, self._clock = device, clock

    def once(self) -> float:
        """Seconds of one pass under the first placement."""
        for _ in range(2):  # the first warms up
            taken, _ = self.run([0], 1)
        return taken / 2  # one more is plain

    def run(self, numbers: Sequence[int], passes: int, tf32: bool = True) -> tuple[float, float]:
        """Seconds of these placements, and their mean BALD."""
        self._loop.passes = passes
        some = [self._placements[number] for number in numbers]
        with convolutions_in(tf32=tf32):
            taken, values = seconds(lambda: self._loop.run(some), self._device, self._clock)
        return taken, float(values["bald"].mean())

    def approximate(self) -> list[str]:
        return sorted(self._loop.approximate)


class Apart:
    """A `Hand` in a process of its own, forked before the heap of this one is told to keep what is freed."""

    def __init__(self, *asked: Any) -> None:
        self._ours, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(target=_serve, args=(theirs, asked), daemon=True)
        self._process.start()

    def _ask(self, *what: Any) -> Any:
        self._ours.send(what)
        return self._ours.recv()

    def once(self) -> float:
        return self._ask("once")

    def run(self, numbers: Sequence[int], passes: int, tf32: bool = True) -> tuple[float, float]:
        return self._ask("run", numbers, passes, tf32)

    def approximate(self) -> list[str]:
        found = self._ask("approximate")
        self._process.terminate()
        return found


def _serve(pipe: Any, asked: Sequence[Any]) -> None:
    os.environ["MALLOC_"] = "as it is"  # a session then leaves the heap alone
    hand = Hand(*asked)
    while True:
        name, *arguments = pipe.recv()
        pipe.send(getattr(hand, name)(*arguments))


def opened(case: Case, model: nn.Module, inputs: Any, more: dict[str, Any], device: torch.device) -> Session:
    options = {"batch_size": case.batch_size, "device": device, "precision": case.precision, **more}
    return open_session(model, inputs, **options)


def prepared(case: Case, session: Session, passes: int) -> Engine:
    """Everything that comes before the passes, once the session is open."""
    placements = [as_placement(text) for text in case.placements(session)]
    resolved = session.resolve(placements)
    session.audit_all(resolved, placements)
    engine = choose_engine(session, resolved, passes)
    if engine.compiles(asked=None):
        engine.compile()
    return engine


def ours(engine: Engine) -> dict[int, float]:
    """The five default measures of all placements and examples, as a sweep computes them; the mean BALD of each."""
    rows = measures.resolve(None)
    needs = {"sum_p"}.union(*(row.needs for row in rows))
    bald: dict[int, list[Tensor]] = {}
    for unit in engine.units():
        for block in engine.run(unit, needs):
            for numbers, kept in block.chunks:
                values = {row.name: row(kept) for row in rows}["bald"].flatten(1).mean(1)
                for number, value in zip(numbers, values, strict=True):
                    bald.setdefault(int(number), []).append(value)
    return {number: float(torch.stack(values).mean()) for number, values in bald.items()}


def seconds(work: Callable[[], Any], device: torch.device, clock: Clock) -> tuple[float, Any]:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = clock()
    result = work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - started, result


def batches(inputs: Any, size: int, device: torch.device, dtype: torch.dtype) -> list[Any]:
    """The inputs in batches on the device, as they are given to the model."""
    call = Call.of(inputs, "inputs").to(device)
    call = call.map(lambda x: x.to(dtype) if x.is_floating_point() else x)
    parts = [call.take(range(i, min(i + size, call.examples))) for i in range(0, call.examples, size)]
    return [part.kwargs or (part.args if len(part.args) > 1 else part.args[0]) for part in parts]


@contextmanager
def convolutions_in(tf32: bool) -> Iterator[None]:
    kept = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = kept


def measured(case: Case, options: argparse.Namespace) -> Record:
    device, clock = torch.device(options.device), options.timer
    hand = (Apart if device.type == "cpu" else Hand)(case, device, clock)
    once = hand.once()
    model, inputs, more = case.build()
    model = model.to(device)
    opening, session = seconds(lambda: opened(case, model, inputs, more, device), device, clock)
    count = len(case.placements(session))
    passes = case.passes
    if options.loop_seconds is not None:
        passes = max(2, round(options.loop_seconds / count / once))
    choosing, engine = seconds(lambda: prepared(case, session, passes), device, clock)
    # Placements in the order of the plan differ in length of tail; the loop runs every one from the start.
    timed = max(1, min(count, int(options.hand_seconds / max(once * (passes + 1), 1e-6))))
    numbers = [i * count // timed for i in range(timed)]
    share = min(1.0, max(2 / passes, options.hand_seconds / (once * passes * timed)))  # of its passes
    first, balds = seconds(lambda: ours(engine), device, clock)
    own, by_hand, in_fp32 = [first], [], []
    rounds = 2 if first < options.long else 1
    for number in range(rounds):
        if number:
            own.append(seconds(lambda: ours(engine), device, clock)[0])
        taken, hand_bald = hand.run(numbers, round(passes * share))
        by_hand.append(taken)
        if device.type == "cuda" and case.convolutions:
            in_fp32.append(hand.run(numbers, round(passes * share), False)[0])
    factor = count / timed * passes / round(passes * share)
    bald = statistics.mean(balds[engine.equivalent(n)] for n in numbers), hand_bald
    return Record(
        case.name, case.kind, engine.name, count, passes, session.data.n, opening + choosing, first, min(own),
        min(by_hand) * factor, min(in_fp32) * factor if in_fp32 else None, timed, rounds,
        bald, case.bar, hand.approximate(),
    )  # fmt: skip


def in_own_process(case: Case, options: argparse.Namespace) -> Record:
    """On a CPU, so that no case finds the heap as another left it."""
    if options.device != "cpu":
        return measured(case, options)
    ours, theirs = multiprocessing.Pipe()

    def run() -> None:
        try:
            theirs.send(measured(case, options))
        except Exception as error:
            theirs.send(f"{type(error).__name__}: {str(error).splitlines()[0][:150]}")

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    found = ours.recv()
    process.join()
    if isinstance(found, str):
        raise RuntimeError(found)
    return found


def summary(records: Sequence[Record]) -> str:
    lines = []
    for kind in dict.fromkeys(record.kind for record in records if record.kind):
        ratios = sorted(record.hand / record.ours for record in records if record.kind == kind)
        median = statistics.median(ratios)
        lines.append(f"{kind}: median {ratio(median)}, lowest {ratio(ratios[0])}, highest {ratio(ratios[-1])}.")
    below = sorted((r for r in records if r.after_ten_seconds < 0.9), key=lambda r: r.after_ten_seconds)
    shared = sum(record.engine == "shared" for record in records)
    lines.append(
        f"Shared engine in {shared} of {len(records)} cases. After 10 s of the loop, {len(below)} are below 0.9×:"
    )
    lines += [f"- {record.case}: {ratio(record.after_ten_seconds)} ({record.engine})" for record in below]
    return "\n".join(lines)


def main() -> None:
    options = arguments()
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    if options.threads:
        torch.set_num_threads(options.threads)
    options.timer = time.process_time if options.clock == "cpu" else time.perf_counter
    print(machine(options.timer))
    if options.device == "cuda":
        print(torch.cuda.get_device_name())
    print("\n" + table(HEAD, []), flush=True)
    records: list[Record] = []
    began = time.monotonic()
    for case in claims(options) if options.claims else zoo_cases(options):
        if options.precision and case.precision == "fp32":
            case = replace(case, name=f"{case.name}, {options.precision}", precision=options.precision)
        if options.only and not any(text in case.name for text in options.only):
            continue
        if time.monotonic() - began > options.seconds:
            print(f"\nStopped before {case.name}: {options.seconds:.0f} s are over.")
            break
        try:
            record = in_own_process(case, options)
        except Exception as error:  # a case that fails is told, and the others go on
            print(f"| {case.name} | failed: {str(error).splitlines()[0][:150]} |", flush=True)
            continue
        records.append(record)
        print("| " + " | ".join(record.row()) + " |", flush=True)
        if options.json is not None:
            shown = vars(record) | {"device": options.device, "torch": torch.__version__}
            with options.json.open("a") as file:
                file.write(json.dumps(shown) + "\n")
        if options.device == "cuda":
            torch.cuda.empty_cache()
    print(f"\n{len(records)} cases in {time.monotonic() - began:.0f} s.")
    if records and not options.claims:
        print(summary(records))
    near = sorted({f"{record.case}: {', '.join(record.approximate[:2])}" for record in records if record.approximate})
    if near:
        print("By hand, noise is near its site, not at it, in " + "; ".join(near) + ".")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--claims", action="store_true", help="the named claims instead of the zoo")
    parser.add_argument("--weights", type=Path, help="a state_dict of a CIFAR ResNet-20; random weights without it")
    parser.add_argument("--only", nargs="+", default=[], help="cases whose names contain one of these texts")
    parser.add_argument("--precision", choices=["tf32", "bf16"], help="of ours, where a case does not name another")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no further case after so many")
    parser.add_argument("--loop-seconds", type=float, help="so many passes that the hand-written loop takes this long")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu: processor time")
    parser.add_argument("--hand-seconds", type=float, help="about how long one hand-written loop runs, at most")
    parser.add_argument("--long", type=float, default=12, help="seconds of ours from which one round is enough")
    parser.add_argument("--json", type=Path, help="file that gets a line for every case")
    parser.add_argument("--threads", type=int, help="of torch on a CPU; its own choice if not given")
    parser.add_argument("--scale", type=int, default=4, help="of the zoo: 1 is the size of the tests")
    parser.add_argument("--examples", type=int, default=16, help="of the zoo")
    parser.add_argument("--passes", type=int, default=10, help="of the zoo")
    parser.add_argument("--sites", type=int, default=4, help="of the zoo, one at a time")
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that it runs")
    options = parser.parse_args()
    if options.quick:
        options.scale, options.examples, options.passes, options.sites = 1, 4, 3, 2
    if options.hand_seconds is None:
        options.hand_seconds = 0.2 if options.quick else 6.0 if options.claims else 1.0
    return options


if __name__ == "__main__":
    main()
