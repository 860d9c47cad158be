"""Is the keyed noise random enough, and how fast is it? The streams as they are used, fed to TestU01 and dieharder.

python benchmarks/noise_quality.py                                   SmallCrush, every ordering, both bit orders
python benchmarks/noise_quality.py --battery rabbit passes sites     Rabbit: 2^30 bits, read as one string
python benchmarks/noise_quality.py --battery crush examples_index    one long battery (an hour and more)
python benchmarks/noise_quality.py --battery dieharder passes        dieharder -a (an hour and more)
python benchmarks/noise_quality.py --throughput                      eager, compiled and torch.rand in one run
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from scipy import stats
from torch import Tensor

from dropscope.noise import keyed as noise

CHUNK = 1 << 22  # words at a time
SITE = noise.site_key("layer3.conv2", 0)
Words = Iterator[Tensor]  # int32 of any shape, read in logical order


def one_mask(seed: int) -> Words:
    """Element after element of a very long unit vector; the next pass when it ends."""
    for t in itertools.count():
        yield noise.bits(noise.streams(seed, SITE, torch.tensor(t), torch.tensor(7)), (CHUNK,))


def tokens(seed: int) -> Words:
    """Element after element of [tokens, hidden]: rows of 768."""
    for t in itertools.count():
        yield noise.bits(noise.streams(seed, SITE, torch.tensor(t), torch.arange(10)), (512, 768))


def examples_index(seed: int) -> Words:
    """Four units of examples 0, 1, 2, …, in one pass."""
    for first in itertools.count(0, CHUNK // 4):
        yield noise.bits(noise.streams(seed, SITE, torch.tensor(0), torch.arange(first, first + CHUNK // 4)), (4,))


def examples_one_unit(seed: int) -> Words:
    """One and the same unit (coordinate 5) of examples 0, 1, 2, …"""
    for first in itertools.count(0, CHUNK // 8):
        examples = torch.arange(first, first + CHUNK // 8)
        yield noise.bits(noise.streams(seed, SITE, torch.tensor(0), examples), (6,))[:, 5]


def examples_fingerprint(seed: int) -> Words:
    """Four units of 65,536 examples named by random 64-bit fingerprints, pass after pass."""
    halves = torch.randint(-(2**31), 2**31, (2, 1 << 16), generator=torch.Generator().manual_seed(seed))
    fingerprints = (halves[0] << 32) ^ halves[1]
    for first in itertools.count(0, CHUNK >> 18):
        passes = torch.arange(first, first + (CHUNK >> 18))
        yield noise.bits(noise.streams(seed, SITE, passes[:, None], fingerprints), (4,))


def passes(seed: int) -> Words:
    """One unit of one example, pass after pass."""
    for first in itertools.count(0, CHUNK // 4):
        yield noise.bits(noise.streams(seed, SITE, torch.arange(first, first + CHUNK // 4), torch.tensor(7)), (1,))


def passes_in_blocks(seed: int) -> Words:
    """One unit: 100 passes of example 0, then 100 passes of example 1, as a sweep of T = 100 reads them."""
    for first in itertools.count(0, 1 << 14):
        examples = torch.arange(first, first + (1 << 14))
        yield noise.bits(noise.streams(seed, SITE, torch.arange(100), examples[:, None]), (1,))


def _stratified(seed: int, passes: Tensor, examples: Tensor, units: int) -> Tensor:
    numbers, places = noise.in_blocks(passes, "stratified")
    return noise.bits(noise.Keys.of(noise.streams(seed, SITE, numbers, examples), places), (units,))


def stratified_mask(seed: int) -> Words:
    """Element after element of a very long unit vector in one pass of stratified draws; of the next example, then."""
    for example in itertools.count():
        yield _stratified(seed, torch.tensor(11), torch.tensor(example), CHUNK)


def stratified_examples(seed: int) -> Words:
    """Four units of examples 0, 1, 2, …, in one pass of stratified draws."""
    for first in itertools.count(0, CHUNK // 4):
        yield _stratified(seed, torch.tensor(6), torch.arange(first, first + CHUNK // 4), 4)


def stratified_blocks(seed: int) -> Words:
    """One unit of one example, in one pass of each block of stratified draws: blocks are independent."""
    for first in itertools.count(0, CHUNK // 4):
        yield _stratified(seed, torch.arange(first, first + CHUNK // 4) * 16 + 9, torch.tensor(7), 1)


def _across(keys: list[tuple[int, int]]) -> Words:
    """For each pass: two units under each (seed, site)."""
    for first in itertools.count(0, 4096):
        block = torch.arange(first, first + 4096)
        yield torch.stack([noise.bits(noise.streams(s, site, block, torch.tensor(7)), (2,)) for s, site in keys], dim=1)


def sites(seed: int) -> Words:
    """For each pass: 128 sites and calls, two units each."""
    yield from _across([(seed, noise.site_key(f"layer{i}.conv", call)) for i in range(32) for call in range(4)])


def seeds(seed: int) -> Words:
    """For each pass: 128 consecutive seeds, two units each."""
    yield from _across([(seed + i, SITE) for i in range(128)])


def _maps(seed: int, shape: tuple[int, int, int], order: tuple[int, int, int]) -> Words:
    for example in itertools.count():
        mask = noise.bits(noise.streams(seed, SITE, torch.tensor(0), torch.tensor(example)), shape)
        yield mask.permute(order)


ORDERINGS: dict[str, Callable[[int], Words]] = {
    "one_mask": one_mask,
    "tokens": tokens,
    "examples_index": examples_index,
    "examples_one_unit": examples_one_unit,
    "examples_fingerprint": examples_fingerprint,
    "passes": passes,
    "passes_in_blocks": passes_in_blocks,
    "sites": sites,
    "seeds": seeds,
    "map_along_width": lambda seed: _maps(seed, (256, 128, 128), (0, 1, 2)),
    "map_along_height": lambda seed: _maps(seed, (256, 128, 128), (0, 2, 1)),
    "map_along_channel": lambda seed: _maps(seed, (256, 128, 128), (1, 2, 0)),
    "attention_along_keys": lambda seed: _maps(seed, (16, 512, 512), (0, 1, 2)),
    "attention_along_queries": lambda seed: _maps(seed, (16, 512, 512), (0, 2, 1)),
    "stratified_mask": stratified_mask,
    "stratified_examples": stratified_examples,
    "stratified_blocks": stratified_blocks,
    "attention_along_heads": lambda seed: _maps(seed, (16, 512, 512), (1, 2, 0)),
}


def build(folder: str) -> str:
    """Compile the TestU01 driver, or say which package is missing."""
    if not Path("/usr/include/testu01/bbattery.h").exists() or shutil.which("gcc") is None:
        sys.exit("TestU01 is missing. On Debian, with the component non-free: apt-get install gcc libtestu01-0-dev")
    program = f"{folder}/noise_quality"
    source = Path(__file__).with_suffix(".c")
    libraries = ["-ltestu01", "-ltestu01probdist", "-ltestu01mylib", "-lm"]
    subprocess.run(["gcc", "-O2", str(source), "-o", program, *libraries], check=True)
    return program


def feed(command: list[str], words: Words) -> tuple[str, str]:
    """Pour words into the command until it has had enough; its standard output and standard error."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    read: dict[str, bytes] = {}
    pipes = {"out": process.stdout, "err": process.stderr}
    readers = [threading.Thread(target=lambda n=n, p=p: read.update({n: p.read()})) for n, p in pipes.items()]
    for reader in readers:
        reader.start()
    try:
        while process.poll() is None:
            process.stdin.write(memoryview(next(words).contiguous().numpy()).cast("B"))
    except BrokenPipeError:
        pass
    for reader in readers:
        reader.join()
    if process.wait() != 0:
        sys.exit(f"{command[0]} failed: {read['err'].decode()}")
    return read["out"].decode(), read["err"].decode()


def testu01(program: str, battery: str, bit_order: str, words: Words) -> list[tuple[str, float]]:
    lines = feed([program, battery, bit_order], words)[1].strip().splitlines()
    pairs = [line.split("\t") for line in lines if "\t" in line]
    return [(name, float(p)) for name, p in pairs if name != "words read"]


def dieharder(words: Words) -> list[tuple[str, float]]:
    """dieharder -a; the p-values of its table."""
    if shutil.which("dieharder") is None:
        sys.exit("dieharder is missing. On Debian: apt-get install dieharder")
    rows = [line.split("|") for line in feed(["dieharder", "-g", "200", "-a"], words)[0].splitlines()]
    return [(f"{r[0].strip()} {r[1].strip()}", float(r[4])) for r in rows if len(r) == 6 and "." in r[4]]


def run_battery(battery: str, names: list[str], bit_orders: list[str], seed: int) -> None:
    torch.set_num_threads(1)
    print("| ordering | bits | statistics | outside [.001, .999] | smallest min(p, 1 − p) | seconds |")
    print("|---|---|---|---|---|---|")
    everything: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        program = build(folder) if battery != "dieharder" else ""
        for name, bit_order in itertools.product(names, bit_orders):
            start = time.perf_counter()
            words = ORDERINGS[name](seed)
            results = testu01(program, battery, bit_order, words) if program else dieharder(words)
            suspect = [f"{test}: {_shown(p)}" for test, p in results if not 1e-3 <= p <= 1 - 1e-3]
            least = min(min(p, 1 - p) for _, p in results)
            seconds = time.perf_counter() - start
            shown = ", ".join(suspect) or "none"
            print(f"| {name} | {bit_order} | {len(results)} | {shown} | {least:.2g} | {seconds:.0f} |", flush=True)
            everything += [p for _, p in results]
    outside = sum(not 1e-3 <= p <= 1 - 1e-3 for p in everything)
    least = min(min(p, 1 - p) for p in everything)
    uniform = stats.kstest(everything, "uniform").pvalue
    print(
        f"\n{len(everything)} p-values; {outside} outside [.001, .999], expected {2e-3 * len(everything):.1f}; ", end=""
    )
    print(f"smallest {least:.2g}; uniform by Kolmogorov-Smirnov: p = {uniform:.3f}")


def _shown(p: float) -> str:
    return f"p = {p:.2g}" if p < 0.5 else f"p = 1 − {1 - p:.2g}"


def measure_throughput() -> None:
    """Values per second of ways to make 2^22 random words; medians of interleaved repetitions, ratios to torch.rand."""
    compiled_bits = torch.compile(noise.bits, dynamic=True)
    compiled_mask = torch.compile(lambda keys, shape: noise.multiplier(keys, shape, 0.5, "bernoulli"), dynamic=True)
    print("| threads | shape | way | M values/s | relative to torch.rand |\n|---|---|---|---|---|")
    examples, shapes = 64, ((65536,), (256, 16, 16))
    for threads, shape in itertools.product((1, torch.get_num_threads()), shapes):
        torch.set_num_threads(threads)
        keys = noise.streams(0, SITE, torch.tensor(0), torch.arange(examples))
        value = torch.ones(examples, *shape)
        ways: dict[str, Callable[[], Tensor]] = {
            "torch.rand": lambda size=(examples, *shape): torch.rand(size),
            "F.dropout": lambda value=value: torch.nn.functional.dropout(value, 0.5),
            "bits, eager": lambda keys=keys, shape=shape: noise.bits(keys, shape),
            "bits, compiled": lambda keys=keys, shape=shape: compiled_bits(keys, shape),
            "bernoulli mask, eager": lambda keys=keys, shape=shape: noise.multiplier(keys, shape, 0.5, "bernoulli"),
            "bernoulli mask, compiled": lambda keys=keys, shape=shape: compiled_mask(keys, shape),
        }
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for repetition in range(24):
            for way, make in ways.items():
                start = time.perf_counter()
                make()
                if repetition >= 4:
                    seconds[way].append(time.perf_counter() - start)
        rates = {way: value.numel() / statistics.median(times) / 1e6 for way, times in seconds.items()}
        for way, rate in rates.items():
            ratio = rate / rates["torch.rand"]
            print(f"| {threads} | {examples}×{shape} | {way} | {rate:.0f} | {ratio:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("orderings", nargs="*", metavar="ordering", help=f"default: all of {', '.join(ORDERINGS)}")
    parser.add_argument("--battery", choices=("small", "rabbit", "crush", "dieharder"), default="small")
    parser.add_argument("--bits", choices=("forward", "reversed", "both"), default="both", help="TestU01 only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--throughput", action="store_true", help="measure the speed instead")
    arguments = parser.parse_args()
    unknown = set(arguments.orderings) - set(ORDERINGS)
    if unknown:
        parser.error(f"no such ordering: {', '.join(sorted(unknown))}; use {', '.join(ORDERINGS)}")
    if arguments.throughput:
        measure_throughput()
        return
    both = ["forward", "reversed"] if arguments.bits == "both" else [arguments.bits]
    bit_orders = ["forward"] if arguments.battery == "dieharder" else both
    run_battery(arguments.battery, arguments.orderings or list(ORDERINGS), bit_orders, arguments.seed)


if __name__ == "__main__":
    main()
