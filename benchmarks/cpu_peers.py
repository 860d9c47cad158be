"""Dropscope on a CPU against a plain loop, torch.vmap and three libraries: all ratios of a claim from one run.

    python -m pip install --no-deps --target DIR -r benchmarks/peers.txt
    python benchmarks/cpu_peers.py --peers DIR [--claims penultimate grid cases] [--repeat 3] [--busy] [--quick]

Every contestant gets new inputs in every round and gives the five default measures. One-off work (sites, audit,
capture, the check against the loop) is not in the times and is stated. Nothing on this path is compiled. Where others
use the machine, `--busy` takes the processor time of one thread: not a user's waiting, but ratios that hold still.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dropscope as ds
import peers
from dropscope import measures
from dropscope.data import read_data
from dropscope.engine import Engine, choose_engine, open_session
from dropscope.engine.shared import SharedEngine
from dropscope.engine.summary import describe
from nets import cifar_net, dropping, resnets, small_bert
from timing import machine, milliseconds, ratio, rounds, seconds_of, table

Values = dict[str, Tensor]


def five_measures(logits: Tensor, plain: Tensor) -> Values:
    """The five default measures from stacked passes `[T, N, C]`, as anyone would write them."""
    p, one = logits.softmax(-1), plain.softmax(-1)
    mean, highest = p.mean(0), p.amax(-1)
    top, at = one.max(-1)
    predicted = p.gather(-1, at.expand(len(p), -1).unsqueeze(-1)).squeeze(-1)
    entropy = -torch.xlogy(mean, mean).sum(-1)
    expected = -torch.xlogy(p, p).sum(-1).mean(0)
    return {
        "variation_predicted": (predicted - top).square().mean(0),
        "variation_max": highest.var(0, correction=0),
        "predictive_entropy": entropy,
        "expected_entropy": expected,
        "bald": entropy - expected,
    }


def measured(passes: peers.Passes, net: nn.Module) -> Callable[[Any], Values]:
    """Another's passes and the plain pass, to the five measures."""

    def run(x: Any) -> Values:
        with torch.no_grad():
            return five_measures(passes(x), net(x))

    return run


def in_batches(run: Callable[[Tensor], Values], size: int) -> Callable[[Tensor], Values]:
    """The same on smaller batches, which caches like better."""

    def parts(x: Tensor) -> Values:
        found = [run(part) for part in x.split(size)]
        return {name: torch.cat([values[name] for values in found]) for name in found[0]}

    return parts


def dropscope(
    net: nn.Module, placements: Sequence[ds.Placement | str], x: Any, passes: int
) -> tuple[Callable[[Any], Values], Engine]:
    """What `uncertainty` and `sweep` do with a batch once their engine is there, raw inputs to measures; the engine."""
    session = open_session(net, x)
    engine = choose_engine(session, session.resolve(placements), passes)
    rows = measures.resolve(None)
    needs = {"sum_p"}.union(*(row.needs for row in rows))

    def run(x: Any) -> Values:
        # An example's key is a hash of its own inputs: part of the time.
        engine.session = session.with_data(read_data(x))
        blocks = (block for unit in engine.units() for block in engine.run(unit, needs))
        found: dict[str, list[Tensor]] = {row.name: [] for row in rows}
        for block in blocks:
            for row in rows:
                found[row.name] += [row(kept).flatten() for _, kept in block.chunks]
        return {name: torch.cat(values) for name, values in found.items()}

    return run, engine


def images(count: int) -> Callable[[int], Tensor]:
    return lambda number: torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(number))


def penultimate(options: argparse.Namespace) -> None:
    """Dropout after fc1 only."""
    passes, fresh = (10 if options.quick else 100), images(options.images)
    net = cifar_net()
    twin = dropping(net, {"fc1": 0.5})
    call = partial(ds.uncertainty, net, "fc1=0.5", passes=passes, progress=False)
    calls = [seconds_of(partial(call, fresh(number)), options.clock)[0] for number in range(100, 105)]
    whole, again = calls[0], min(calls[1:])
    ours, engine = dropscope(net, ["fc1=0.5"], fresh(0), passes)
    found, missing = peers.libraries(options.peers, twin, passes)
    contestants = {
        "Dropscope": ours,
        "torch.vmap": measured(peers.vmap(twin, passes), net),
        "plain loop": measured(peers.plain_loop(twin, passes), net),
        "plain loop, batches of 64": in_batches(measured(peers.plain_loop(twin, passes), net), 64),
        **{name: measured(way, net) for name, way in found.items()},
    }
    best, last = rounds(contestants, fresh, options.repeat, options.clock)
    quickest = min((name for name in found), key=best.__getitem__, default=None)
    print(f"\n### Dropout in the penultimate layer only: {options.images} images, T = {passes}, fc1 = 0.5\n")
    rows = [
        [name, milliseconds(taken), ratio(taken / best["Dropscope"]), f"{last[name]['bald'].mean():.4f}"]
        for name, taken in sorted(best.items(), key=lambda item: item[1])
    ]
    print(table(["way", "ms", "Dropscope is faster by", "mean bald"], rows))
    print(f"\nEngine: {engine.name}. `uncertainty` with all one-off work: {whole:.2f} s, called again {again:.2f} s.")
    print(f"Against the plain loop {ratio(best['plain loop'] / best['Dropscope'])} (bar 40×).", end=" ")
    if quickest is not None:
        print(f"Best library: {quickest}, {ratio(best[quickest] / best['Dropscope'])} (bar 20×).", end=" ")
    print(f"torch.vmap, torch's own and no library: {ratio(best['torch.vmap'] / best['Dropscope'])}.")
    for name, reason in missing.items():
        print(f"Left out: {name} ({reason}).")


def grid(options: argparse.Namespace) -> None:
    """All 999 placements of conv2, conv3 and fc1; the loop over placements is estimated from a sample."""
    passes = 2 if options.quick else options.grid_passes
    placements = list(ds.PlacementGrid(["conv2", "conv3", "fc1"]))
    net, fresh = cifar_net(), images(options.images)
    labels = torch.randint(0, 10, (options.images,), generator=torch.Generator().manual_seed(0))
    sample = random.Random(0).sample(placements, 4 if options.quick else 16)
    loops = [peers.plain_loop(dropping(net, rates_of(placement)), passes) for placement in sample]
    ours, engine = dropscope(net, placements, fresh(0), passes)
    assert isinstance(engine, SharedEngine)

    def loop(x: Tensor) -> None:
        for passes_of_one in loops:
            measured(passes_of_one, net)(x)

    def sweep(x: Tensor) -> None:
        ds.sweep(net, placements, (x, labels), passes=passes, keep="none", progress=False)

    contestants = {"ours": ours, "sweep": sweep, "loop": loop}
    best, last = rounds(contestants, fresh, options.repeat, options.clock)
    computed = len(last["ours"]["bald"]) // options.images
    plan = engine.forests(engine.session.data.batches[0])[0].plan
    fewer = [describe(plan, t, options.images)["fewer"] for t in (passes, 100)]
    looped = best["loop"] / len(sample) * len(placements)
    print(
        f"\n### The grid of {len(placements)} placements of conv2, conv3, fc1: {options.images} images, T = {passes}\n"
    )
    rows = [
        [f"loop over placements, from {len(sample)} of them", f"{looped:.1f}", ""],
        ["Dropscope: passes, statistics, measures", f"{best['ours']:.2f}", ratio(looped / best["ours"])],
        [
            "Dropscope: `sweep`, with set-up, audit and all scores",
            f"{best['sweep']:.2f}",
            ratio(looped / best["sweep"]),
        ],
    ]
    print(table(["what", "s", "Dropscope is faster by"], rows))
    print(
        f"\n{computed} placements computed, multiply-adds {fewer[0]:.0f}× fewer ({fewer[1]:.0f}× at T = 100). Bar 40×."
    )


def rates_of(placement: ds.Placement) -> dict[str, float]:
    return {site: float(rate) for site, rate in (part.split("=") for part in str(placement).split(","))}


def cases(options: argparse.Namespace) -> None:
    """Where there is little to share: none may be slower than 0.9 of the plain loop."""
    passes = 4 if options.quick else 20
    fresh = images(options.images)
    everywhere = dict.fromkeys(("conv1", "conv2", "conv3", "fc1"), 0.2)
    ends = {"conv1": 0.2, "fc1": 0.5}
    net = cifar_net()
    blocks = {f"block{i}.conv1": 0.2 for i in (1, 2, 3)}
    tried: list[tuple[str, nn.Module, ds.Placement | str, nn.Module, Callable[[int], Any]]] = [
        ("CIFAR net, conv1 + fc1", net, ds.Placement(ends), dropping(net, ends), fresh),
        ("CIFAR net, all layers", net, ds.Placement(everywhere), dropping(net, everywhere), fresh),
        (
            "CIFAR net, all layers, element masks",
            net,
            ds.Placement(everywhere, mask="element"),
            dropping(net, everywhere, element=True),
            fresh,
        ),
        ("CIFAR net, conv3 only", net, "conv3=0.5", dropping(net, {"conv3": 0.5}), fresh),
        ("ResNet-8, every block", *_placed(resnets((0.2, 0.2, 0.2)), ds.Placement(blocks)), fresh),
        ("ResNet-8, last block", *_placed(resnets((0.0, 0.0, 0.2)), "block3.conv1=0.2"), fresh),
    ]
    rows = []
    for name, quiet, placement, noisy, inputs in tried:
        ours, engine = dropscope(quiet, [placement], inputs(0), passes)
        rows.append(
            _against_loop(name, engine, ours, measured(peers.plain_loop(noisy, passes), quiet), inputs, options)
        )
    try:
        rows += _bert(passes, options)
    except ImportError as reason:
        print(f"Left out: BERT ({reason}).")
    print(f"\n### Where there is less to share: {options.images} images or 32 texts of 32 tokens, T = {passes}\n")
    print(table(["case", "engine", "Dropscope, ms", "plain loop, ms", "faster by", "mean bald, both"], rows))
    print("\nBar: no case below 0.9×.")


def _placed(nets: tuple[nn.Module, nn.Module], placement: Any) -> tuple[nn.Module, Any, nn.Module]:
    return nets[0], placement, nets[1]


def _bert(passes: int, options: argparse.Namespace) -> list[list[str]]:
    net = small_bert()

    def fresh(number: int) -> dict[str, Tensor]:
        ids = torch.randint(1, 500, (32, 32), generator=torch.Generator().manual_seed(number))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    noisy = peers.stochastic(net).train()  # BERT has no BatchNorm; its attention drops only when the module trains

    def loop(x: dict[str, Tensor]) -> Values:
        with torch.no_grad():
            return five_measures(torch.stack([noisy(**x).logits for _ in range(passes)]), net(**x).logits)

    own, engine = dropscope(net, ["own"], fresh(0), passes)
    return [_against_loop("BERT of 2 layers, its own dropout", engine, own, loop, fresh, options)]


def _against_loop(
    name: str,
    engine: Engine,
    ours: Callable[[Any], Values],
    loop: Callable[[Any], Values],
    fresh: Callable[[int], Any],
    options: argparse.Namespace,
) -> list[str]:
    best, last = rounds({"ours": ours, "loop": loop}, fresh, options.repeat, options.clock)
    bald = " / ".join(f"{last[who]['bald'].mean():.4f}" for who in ("ours", "loop"))
    times = [milliseconds(best[who]) for who in ("ours", "loop")]
    return [name, engine.name, *times, ratio(best["loop"] / best["ours"]), bald]


CLAIMS = {"penultimate": penultimate, "grid": grid, "cases": cases}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder that holds the libraries of peers.txt")
    parser.add_argument("--claims", nargs="+", choices=list(CLAIMS), default=list(CLAIMS))
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--busy", action="store_true", help="processor time of one thread instead of wall time")
    parser.add_argument("--repeat", type=int, default=3, help="rounds; the best counts")
    parser.add_argument("--grid-passes", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="few passes and placements: to see that it runs")
    options = parser.parse_args()
    options.clock = time.process_time if options.busy else time.perf_counter
    torch.set_num_threads(1 if options.busy else options.threads)
    print(machine(options.clock))
    for claim in options.claims:
        CLAIMS[claim](options)


if __name__ == "__main__":
    main()
