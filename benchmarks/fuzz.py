"""Fuzzing of everything that Dropscope reads: how many inputs were used, how many refused, and what went wrong.

    python benchmarks/fuzz.py [--inputs 100000] [--seconds 1800] [--seed 0] [--only NAME,NAME] [--verbose]
    python benchmarks/fuzz.py --only NAME --number 17 --seed 0     one input again, with its traceback

Each kind of input (tests/support/fuzzing) is read in a process of its own, which is started again where it dies; an
input has 20 seconds and 3 GB. The same seed gives the same inputs. Exit code 1 where anything went wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--number", type=int, help="try this input alone")
    parser.add_argument("--verbose", action="store_true", help="show the traceback of the first failure of each kind")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if given.worker is not None:
        return _work(given.worker, given.seed, *map(int, given.only.split(":")))
    from support.fuzzing import TARGETS

    chosen = [name.strip() for name in given.only.split(",") if name.strip()] or list(TARGETS)
    if given.number is not None:
        return _work(chosen[0], given.seed, given.number, given.number + 1)
    return _drive(chosen, given)


def _drive(chosen: list[str], given: Any) -> int:
    from support.fuzzing import TARGETS

    whole = sum(TARGETS[name].share for name in chosen)
    started, counts, wrong = time.monotonic(), {}, 0
    print(f"{'reads':<16}{'inputs':>8}{'used':>8}{'refused':>9}{'wrong':>7}{'seconds':>9}{'slowest':>9}")
    for name in chosen:
        most = max(1, round(given.inputs * TARGETS[name].share / whole))
        left = given.seconds - (time.monotonic() - started)
        count = _run(
            name, most, given.seed, left if len(chosen) == 1 else given.seconds * TARGETS[name].share / whole + 60
        )
        counts[name] = count
        bad = sum(count["wrong"].values())
        wrong += bad
        print(f"{name:<16}{count['inputs']:>8}{count['used']:>8}{count['refused']:>9}{bad:>7}"
              f"{count['seconds']:>9.0f}{count['slowest']:>9.2f}", flush=True)  # fmt: skip
        for problem, number in sorted(count["wrong"].items(), key=lambda pair: -pair[1]):
            first = count["first"][problem]
            print(f"    {number:>5}  {problem}  (input {first['number']})", flush=True)
            if given.verbose:
                print("        " + first["detail"].replace("\n", "\n        "), flush=True)
    total = sum(count["inputs"] for count in counts.values())
    print(f"{total} inputs, {wrong} wrong, {time.monotonic() - started:.0f} s")
    return int(wrong > 0)


def _run(name: str, most: int, seed: int, seconds: float) -> dict[str, Any]:
    """Tries inputs of one kind until there are enough, or no time is left."""
    found: dict[str, Any] = {"inputs": 0, "used": 0, "refused": 0, "wrong": Counter(), "first": {}, "slowest": 0.0}
    started = time.monotonic()
    number = 0
    while number < most and time.monotonic() - started < seconds:
        command = [sys.executable, __file__, "--worker", name, "--seed", str(seed), "--only", f"{number}:{most}"]
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as worker,
        ):
            assert worker.stdout is not None
            for line in worker.stdout:
                each = json.loads(line)
                number = each["number"] + 1
                _count(found, each)
                if time.monotonic() - started > seconds:
                    worker.terminate()
                    break
            code = worker.wait()
            if number < most and time.monotonic() - started <= seconds:
                errors.seek(0)
                said = errors.read().decode(errors="replace")[-2000:]
                _count(found, {"number": number, "problem": f"the process ends ({code})", "detail": said, "took": 0.0})
                number += 1
    return {**found, "seconds": time.monotonic() - started}


def _count(found: dict[str, Any], each: dict[str, Any]) -> None:
    found["inputs"] += 1
    found["slowest"] = max(found["slowest"], each["took"])
    if each["problem"]:
        found["wrong"][each["problem"]] += 1
        found["first"].setdefault(each["problem"], each)
    else:
        found["refused" if each["refused"] else "used"] += 1


def _work(name: str, seed: int, start: int, stop: int) -> int:
    """Tries inputs and prints a line of JSON for each."""
    import torch

    from support.fuzzing import TARGETS
    from support.fuzzing.trials import attempt, generator, limit_memory, limited

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        trial = TARGETS[name].prepare(Path(folder))
        _warm_up(trial)
        limit_memory()
        for number in range(start, stop):
            draw, began = generator(name, seed, number), time.monotonic()
            with limited():
                outcome = attempt(lambda draw=draw: trial(draw))  # type: ignore[misc]
            wrong += bool(outcome.problem)
            line = {"number": number, "took": time.monotonic() - began, **vars(outcome)}
            print(json.dumps(line), file=answers, flush=True)
        os.chdir("/")
    return int(wrong > 0)


def _warm_up(trial: Any) -> None:
    """Imports what the first inputs would import, before memory is limited."""
    from support.fuzzing.trials import attempt

    for number in range(3):
        attempt(lambda number=number: trial(random.Random(number)))  # type: ignore[misc]


if __name__ == "__main__":
    sys.exit(main())
