"""Does `tune` find the best placement of a full sweep, for how much of its work, and is its verdict right?

    python benchmarks/tuning.py sweep --model net.py:model --data net.py:images --out DIR [--rates 0.1,…] [--sites a,b]
                                      [--space grid|suffixes] [--seconds 200]
    python benchmarks/tuning.py race --sweep DIR [--orders 20] [--optuna DIR] [--times 1,10]
    python benchmarks/tuning.py judged [--seeds 100]
    python benchmarks/tuning.py planted [--seeds 100] [--first 0]

`sweep` runs every placement (a grid, or single sites and suffixes) on the part of the data that `tune` searches on with
16 stratified passes, and keeps each measure of each example; it stops after `--seconds` and goes on when it is called
again. `race` then looks for the best one with a fraction of the predictions, reading values there (noise is keyed: a
placement that runs gives the same ones), in several orders of the examples; optuna's GPSampler with its WilcoxonPruner
gets as many predictions. `judged` makes up scores for which it is known whether dropout helps, `planted` tunes small
networks for which it is.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import dropscope as ds
from dropscope import measures, scores
from dropscope.data import read_data
from dropscope.deploy.tuning.tunings import LEVEL
from dropscope.device import memory_bytes
from dropscope.engine import choose_engine, open_session
from dropscope.loading import load_data, load_model
from dropscope.placement import Placement
from dropscope.runs import RACE_PASSES, SEARCH_RATES, Space, judge, portions
from dropscope.runs.rows import RowMaker
from dropscope.runs.searches import race_on

AURC = scores.TABLE["aurc"]
FULL_PASSES = 100  # of a sweep as one would run it
BLOCK = 25  # examples of an instance, as optuna's pruner has it
AT_ONCE = {"grid": 500, "suffixes": 4}  # placements that are kept together


def sweep(asked: argparse.Namespace) -> int:
    """Values of every measure of every placement, on every example of the search part."""
    started, longest = time.monotonic(), 0.0
    loaded = load_model(asked.model)
    session = open_session(loaded.module, load_data(asked.data, loaded), draws="stratified", batch_size=64)
    session = session.with_data(session.data.part(portions(session, (0.4, 0.4, 0.2))[0].tolist()))
    sites = asked.sites.split(",") if asked.sites else None
    space = Space.of(session.site_map, sites, [float(rate) for rate in asked.rates.split(",")])
    placements = _placements(space, asked.space)
    engine = choose_engine(
        session, session.resolve(placements), RACE_PASSES, memory=memory_bytes("1GiB", session.device)
    )
    maker = RowMaker(session, engine, placements, measures.resolve(None), [AURC], "plain", 1 << 30)
    size, asked.out = AT_ONCE[asked.space], Path(asked.out)
    asked.out.mkdir(parents=True, exist_ok=True)
    for first in range(0, len(placements), size):
        file = asked.out / f"{first // size:04d}.npz"
        if file.exists():
            continue
        if time.monotonic() - started + longest > asked.seconds:
            return 3  # call it again
        begun = time.monotonic()
        numbers = [n for n in range(first, min(first + size, len(placements))) if engine.equivalent(n) == n]
        found: dict[int, np.ndarray] = {}
        for unit in engine.only(numbers):
            measured = maker.measured(unit)
            stacked = torch.stack([measured.values[row.name] for row in maker.measures], 1).numpy()
            found |= {n: values for n, values in zip(measured.numbers, stacked, strict=True) if n in numbers}
        whole = np.stack([found[n] for n in numbers])
        part = file.with_suffix(".part.npz")
        np.savez(part, numbers=numbers, values=whole, right=measured.right[0].numpy())
        part.rename(file)
        longest = max(longest, time.monotonic() - begun)
    about = {"placements": [str(p) for p in placements], "measures": [row.name for row in maker.measures]}
    about |= {"rates": space.rates, "sites": space.sites, "n": session.data.n, "passes": RACE_PASSES}
    (asked.out / "done.json").write_text(json.dumps(about), encoding="utf-8")
    return 0


def _placements(space: Space, kind: str) -> list[Placement]:
    if kind == "grid":
        return list(ds.PlacementGrid(space.sites, space.rates))
    both = (
        ds.PlacementSpace.single_sites(space.sites, space.rates),
        ds.PlacementSpace.suffixes(space.sites, space.rates),
    )
    every = list(dict.fromkeys(placement for some in both for placement in some))
    place = {site: n for n, site in enumerate(space.sites)}
    return sorted(every, key=lambda placement: -min(place[term.address] for term in placement.terms))


class Table:
    """A full sweep that was run, as something to look values up in."""

    def __init__(self, folder: Path) -> None:
        about = json.loads((folder / "done.json").read_text(encoding="utf-8"))
        files = [np.load(file) for file in sorted(folder.glob("*.npz"))]
        numbers = np.concatenate([file["numbers"] for file in files])
        self.values = torch.from_numpy(np.concatenate([file["values"] for file in files])).float()
        self.right = torch.from_numpy(files[0]["right"])
        self.names = about["measures"]
        self.number = {Placement.parse(about["placements"][n]): i for i, n in enumerate(numbers)}
        self.space = Space(tuple(about["sites"]), tuple(about["rates"]), (), ())
        self.n, self.size = len(self.right), len(about["placements"])
        every = self.right.expand(self.values.shape)
        self.best = scores.aurc(self.values, every).amin(1)  # of each placement, by its best measure
        self.data = read_data((torch.zeros(self.n, 1), torch.zeros(self.n, dtype=torch.long)), ids="index")

    def __call__(self, placements: Sequence[Placement], places: np.ndarray, label: str) -> tuple[Tensor, int]:
        found = self.values[[self.number[placement] for placement in placements]][:, :, torch.from_numpy(places)]
        return found, len(placements) * RACE_PASSES * len(places)

    def gap(self, placement: Placement) -> float:
        return float(self.best[self.number[placement]] - self.best.min())


class Known(Space):
    """A space of the placements that a table has."""

    table: Table

    def neighbours(self, placement: Placement) -> list[Placement]:
        return [near for near in super().neighbours(placement) if near in self.table.number]


def race(asked: argparse.Namespace) -> int:
    table = Table(Path(asked.sweep))
    space = Known(*(getattr(table.space, name) for name in ("sites", "rates", "own", "last")))
    object.__setattr__(space, "table", table)
    opening = [placement for placement in space.opening() if placement in table.number]
    gaps, spent = [], []
    for seed in range(asked.orders):
        found = race_on(table, table.data, space, table.names, AURC, table.right, opening, seed)
        gaps.append(min(table.gap(placement) for placement in found.finalists))
        spent.append(found.predictions)
    errors = int((~table.right).sum())
    print(f"{len(table.number)} placements × {len(table.names)} measures on {table.n} examples, {errors} errors;")
    print(f"best AURC {float(table.best.min()):.4f}, median of the placements {float(table.best.median()):.4f}")
    budget = int(np.median(spent))
    finalists = 5 * 48 * table.n
    for name, work in (("race", budget), ("race and finalists", budget + finalists)):
        of = work / (table.size * FULL_PASSES * table.n), work / (table.size * RACE_PASSES * table.n)
        print(f"{name}: {work:,} predictions, {100 * of[0]:.2f} % of the sweep with 100 passes, "
              f"{100 * of[1]:.2f} % with 16")  # fmt: skip
    _say("race", gaps)
    if asked.optuna:
        sys.path.insert(0, asked.optuna)
        for times in (float(part) for part in asked.times.split(",")):
            for sampler in ("GPSampler", "RandomSampler"):
                found = [_optuna(table, sampler, times * budget, seed) for seed in range(asked.orders)]
                _say(f"optuna {sampler}, WilcoxonPruner, {times:g}× the predictions of the race", found)
    return 0


def _say(name: str, gaps: Sequence[float]) -> None:
    values = np.array(gaps)
    within = int((values <= 0.002).sum())
    print(f"{name}: AURC above the best: median {np.median(values):.4f}, largest {values.max():.4f}; "
          f"within .002 in {within} of {len(values)}")  # fmt: skip


def _optuna(table: Table, sampler: str, budget: float, seed: int) -> float:
    """The best placement that optuna finds with so many predictions, pruned ones included."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    order = np.random.default_rng(seed).permutation(table.n)
    blocks = np.array_split(order, max(1, table.n // BLOCK))
    spent = 0
    tried: dict[int, float] = {}

    def objective(trial: Any) -> float:
        nonlocal spent
        placement = _suggested(trial, table)
        if placement is None:
            return 1.0
        number = table.number[placement]
        if number in tried:  # costs nothing again
            return tried[number]
        seen: list[int] = []
        for step, block in enumerate(blocks):
            if spent >= budget:
                trial.study.stop()
                raise optuna.TrialPruned
            spent += RACE_PASSES * len(block)
            seen += block.tolist()
            values = table.values[number]
            trial.report(float(scores.aurc(values[:, block], table.right[block].expand(5, -1)).min()), step)
            if trial.should_prune():
                part = torch.tensor(seen)
                return float(scores.aurc(values[:, part], table.right[part].expand(5, -1)).min())
        tried[number] = float(table.best[number])
        return tried[number]

    made = getattr(optuna.samplers, sampler)(seed=seed)
    study = optuna.create_study(sampler=made, pruner=optuna.pruners.WilcoxonPruner(p_threshold=0.1))
    while spent < budget and len(study.trials) < 400:
        study.optimize(objective, n_trials=1)
    return min(tried.values(), default=float(table.best.max())) - float(table.best.min())


def _suggested(trial: Any, table: Table) -> Placement | None:
    """A rate for each site, or (where the sweep is of single sites and suffixes) a kind, a site and a rate."""
    sites, rates = table.space.sites, table.space.rates
    if len(table.number) == (len(rates) + 1) ** len(sites) - 1:
        codes = {site: trial.suggest_int(site, 0, len(rates)) for site in sites}
        chosen = {site: rates[code - 1] for site, code in codes.items() if code}
        return Placement(chosen) if chosen else None
    rate = rates[trial.suggest_int("rate", 0, len(rates) - 1)]
    first = trial.suggest_int("site", 0, len(sites) - 1)
    named = sites[first:] if trial.suggest_categorical("suffix", [False, True]) else sites[first : first + 1]
    placement = Placement(dict.fromkeys(named, rate))
    return placement if placement in table.number else None


def planted(asked: argparse.Namespace) -> int:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support.planted_votes import Votes, margin_knows_all, noise_finds_the_errors

    options = {"passes": 16, "rates": (0.2, 0.5), "rivals": (), "ids": "index", "progress": False}
    for name, draw, helps in (("helps", noise_finds_the_errors, True), ("does not help", margin_knows_all, False)):
        seeds = range(asked.first, asked.first + asked.seeds)
        right = [(ds.tune(Votes(), draw(600, seed), **options).placement is not None) == helps for seed in seeds]
        print(f"dropout {name}: right in {sum(right)} of {len(right)} seeds", flush=True)
    return 0


def judged(asked: argparse.Namespace) -> int:
    """The decision alone, on made-up scores: the best of 20 candidates on 480 examples, judged on 480 others."""
    for name, sharper, helps in (("helps", 0.5, True), ("does not help", 1.0, False)):
        right = []
        for seed in range(asked.seeds):
            draw = np.random.default_rng(seed)
            risk = draw.normal(size=960)
            correct = draw.random(960) > 1 / (1 + np.exp(1.2 - 1.5 * risk))
            doubt = draw.normal(size=960)
            plain = risk + doubt
            tried = risk + sharper * doubt + 0.3 * draw.normal(size=(20, 960))
            half = torch.from_numpy(tried[:, :480]), torch.from_numpy(correct[:480]).expand(20, -1)
            best = tried[int(scores.aurc(*half).argmin()), 480:]
            tables = [pd.DataFrame({"uncertainty": u, "correct": correct[480:]}) for u in (best, plain[480:])]
            found = judge(("best", "bald", "plain_entropy"), *tables, level=LEVEL)
            right.append((found.word == "better") == helps)
        print(f"dropout {name}, on scores: right in {sum(right)} of {len(right)} seeds", flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("sweep")
    one.set_defaults(run=sweep)
    for name in ("--model", "--data", "--out"):
        one.add_argument(name, required=True)
    one.add_argument("--rates", default=",".join(map(str, SEARCH_RATES)))
    one.add_argument("--sites", default="")
    one.add_argument("--space", default="grid", choices=list(AT_ONCE))
    one.add_argument("--seconds", type=float, default=1e9)
    two = commands.add_parser("race")
    two.set_defaults(run=race)
    two.add_argument("--sweep", required=True)
    two.add_argument("--orders", type=int, default=20)
    two.add_argument("--optuna", default="")
    two.add_argument("--times", default="1,10")
    three = commands.add_parser("planted")
    three.set_defaults(run=planted)
    three.add_argument("--seeds", type=int, default=100)
    three.add_argument("--first", type=int, default=0)
    four = commands.add_parser("judged")
    four.set_defaults(run=judged)
    four.add_argument("--seeds", type=int, default=100)
    asked = parser.parse_args()
    return int(asked.run(asked))


if __name__ == "__main__":
    sys.exit(main())
