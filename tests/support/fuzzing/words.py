"""Targets that read words: placements, options, lists of arguments."""

from __future__ import annotations

import random
from pathlib import Path

from dropscope.cli.placements import PlacementOptions, read_placements
from dropscope.loading import as_class_names
from dropscope.loading.pixels import parse_normalisation, parse_size
from dropscope.placement import Placement, PlacementGrid, as_placement
from support.fuzzing.mutation import NUMBERS, WORDS, changed_text, odd_value
from support.fuzzing.trials import Target, Try, use

_TEXTS = (
    "conv2=.7,conv3=.8,fc1=.4", "own", "own*2", "own.attention", "none", "last=0.5", "all=0.1", "attention=.6,ffn=.1",
    "fc1#2@input=0.3", "layer1.0.conv1@before_activation=0.25", "fc1=0.5;noise=gaussian", "fc1=0.5 noise=gaussian",
    "encoder.layer.0.attention.self@weights=0.1", "0=0.5,2@output=0.9", "own;own*2;fc1=0.5", "a=1e-3", "fc1:0.5",
)  # fmt: skip


def _placements(folder: Path) -> Try:
    def attempt(draw: random.Random) -> None:
        text = changed_text(draw.choice(_TEXTS), draw)
        match draw.randrange(5):
            case 0:
                read_placements(text)
            case 1:
                (folder / "placements.txt").write_bytes(text.encode("utf-8", "surrogatepass"))
                read_placements(str(folder / "placements.txt"))
            case 2:
                as_placement({text: draw.choice(NUMBERS), draw.choice(WORDS): odd_value(draw)})
            case _:
                made = Placement.parse(text)
                assert Placement.parse(str(made)) == made, f"{text!r} does not come back from {made}"
                hash(made)

    return attempt


def _options(folder: Path) -> Try:
    def attempt(draw: random.Random) -> None:
        match draw.randrange(5):
            case 0:
                parse_size(draw.choice((odd_value(draw), changed_text("224x320", draw))))
            case 1:
                mean = draw.choice((odd_value(draw), changed_text("0.4,0.5,0.6", draw), "imagenet", None))
                parse_normalisation(mean, draw.choice((odd_value(draw), changed_text("0.2", draw), None)))
            case 2:
                as_class_names(draw.choice((odd_value(draw), changed_text("cat,dog,a", draw))))
            case 3:
                sites = [changed_text(name, draw) for name in draw.choices(("conv1", "fc1", "fc1@input"), k=2)]
                rates = [draw.choice((0.1, 0.5, *NUMBERS)) for _ in range(draw.randrange(3))]
                grid = PlacementGrid(sites, rates, (draw.choice(("auto", "input", *WORDS)),))
                use(len(grid), grid[0], grid[-1], repr(grid))
            case _:
                given = PlacementOptions((changed_text("fc1", draw),), changed_text("own;fc1=0.5", draw))
                use(*list(given.chosen())[:20])

    return attempt


def _arguments(folder: Path) -> Try:
    import os

    from support.argument_fuzz import argument_list, make_folder, outcome, restored

    home = make_folder(folder)

    def attempt(draw: random.Random) -> None:
        arguments = argument_list(draw.getrandbits(32), 0)
        before = Path.cwd()
        os.chdir(home)
        try:
            with restored(folder):
                found = outcome(arguments, draw.choice((None, None, "80", "1", "0", "x", "200")))
        finally:
            os.chdir(before)
        assert not found.problem, f"{found.problem}: {arguments}: {found.said[-500:]}"

    return attempt


TARGETS = (
    Target("placements", 25, _placements),
    Target("options", 8, _options),
    Target("argument lists", 0.6, _arguments),
)
