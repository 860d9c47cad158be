"""Study S2: how do transformers take dropout at inference, and is it memory or reasoning that suffers?

"Dropout Robustness and Cognitive Profiling of Transformer Models via Stochastic Inference" (Caiado, Hahsler). `plan`
checks the options and reads the items; `run` takes every model through training, its configurations and the
sensitivity map, then writes the report. A model that cannot be loaded is reported and left out; the rest goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from dropscope.atomic import output_folder
from dropscope.device import as_device
from dropscope.errors import BadInput, DropscopeError, Phrase, first_line
from dropscope.progress import stage
from dropscope.report import Claim, Registration, Summary, claim_folder, write_claims
from dropscope.studies.transformer_profile import cells, claims, published, robustness
from dropscope.studies.transformer_profile.checkpoints import kind_of, read_checkpoints
from dropscope.studies.transformer_profile.configurations import CONFIGURATIONS, grid_of, rates_of
from dropscope.studies.transformer_profile.fine_tuning import Tuning
from dropscope.studies.transformer_profile.items import read_items, two_domains
from dropscope.studies.transformer_profile.networks import profile_model
from dropscope.studies.transformer_profile.options import Options, Plan
from dropscope.studies.transformer_profile.presets import PRESETS
from dropscope.studies.transformer_profile.report import write_report
from dropscope.studies.transformer_profile.rules import RULES
from dropscope.studies.transformer_profile.store import write_tables

STUDY = "transformer-profile"
log = logging.getLogger("dropscope")


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run left.

    Attributes:
        folder: Where everything is; read `summary.md` first.
        claims: The published claims, judged.
        tables: Every table of the report by name, and the rows of "models" (with those skipped) and "passes".
        summary: What `summary.md` says first.
    """

    folder: Path
    claims: tuple[Claim, ...]
    tables: Mapping[str, pd.DataFrame]
    summary: Summary


def plan(options: Options) -> Plan:
    """Checks every option and reads the items; no model is loaded.

    Raises:
        BadInput: For an option or a data file that cannot be used.
    """
    options.check()
    output_folder(options.out)
    device = as_device(options.device)
    preset = PRESETS[options.preset]
    asked = (rates_of(text) for text in options.configurations or ())
    configurations = tuple(dict.fromkeys((*CONFIGURATIONS, *asked)))
    surface = grid_of(options.surface) if options.surface else ()
    if options.data is not None:
        columns = (options.text_column, options.label_column, options.group_column)
        items = read_items(Path(options.data), *columns, options.seed, train=options.train != "none")
    else:
        assert options.squad is not None
        assert options.hellaswag is not None
        count = preset.items if options.items is None else options.items
        files = Path(options.squad), Path(options.hellaswag)
        items = two_domains(*files, count, options.seed, with_context=options.context)
    passes = preset.passes if options.passes is None else options.passes
    fewer = min(preset.sensitivity_passes, passes)
    tuning = Tuning(options.learning_rate, preset.epochs)
    return Plan(options, options.model_names, items, passes, fewer, tuning, device, configurations, surface)


def estimate(plan: Plan) -> dict[str, Any]:
    """What `run` would do: the items, which models can be loaded, and how many predictions that is."""
    checkpoints, missing = read_checkpoints(plan.models)
    configs = {name: checkpoint.config for name, checkpoint in checkpoints.items()}
    sides = {side: len(plan.items.side(side)) for side in ("train", "test")}
    evaluated = (*plan.configurations, *plan.surface)
    stochastic = sum(not configuration.deterministic for configuration in evaluated)
    networks = [variant for variant in plan.variants if variant.checkpoint in configs]
    layers = sum(v.layers or int(getattr(configs[v.checkpoint], "num_hidden_layers", 12)) for v in networks)
    return {
        "items": sides,
        "groups": plan.items.side("test").groupby("group").size().to_dict(),
        "classes": list(plan.items.classes),
        "models": {
            name: f"{configs[name].model_type}, {kind_of(configs[name])}, at most {checkpoint.longest} tokens"
            for name, checkpoint in checkpoints.items()
        },
        "missing": missing,
        "networks": len(networks),
        "evaluations": len(networks) * len(evaluated),
        "passes": plan.passes,
        "predictions": len(networks) * (stochastic * plan.passes + 2) * sides["test"]
        + 2 * layers * plan.sensitivity_passes * sides["test"],
        "rates": plan.options.rates,
        "masks": plan.options.masks,
        "train": plan.options.train,
        "remarks": list(plan.items.remarks),
        "device": str(plan.device),
        "out": str(plan.options.out),
    }


def run(plan: Plan) -> Outcome:
    """Every model that can be loaded, through training, five configurations and the sensitivity map; then the report.

    A run that was killed continues where it stopped: weights, and each model × configuration, are complete or absent.

    Raises:
        BadInput: Where no model can be evaluated, or the folder holds another run.
    """
    claim_folder(plan.folder, plan.spec)
    _registration(plan).check(plan.options.preregister, plan.folder)
    plan.items.save(plan.folder / "dataset.parquet")
    skipped = _profile_models(plan)
    if len(skipped) == len(plan.variants):
        reasons = Phrase("; ".join(f"{name}: {reason}" for name, reason in skipped.items()))
        what = "models must name at least one that can be loaded and evaluated"
        raise BadInput(what, "models", reasons, "name a folder with a checkpoint")
    reasons_by_name = {variant.name: skipped.get(variant.name) for variant in plan.variants}
    models = write_tables(
        plan.folder, reasons_by_name, plan.tuning.learning_rate, plan.configurations, plan.surface
    )  # fmt: skip
    with stage("intervals, tables and figures"):
        summary, tables = write_report(plan, models)
    write_claims(plan.folder, STUDY, str(plan.spec["data"]), summary.claims)
    rows = {"models": models, "passes": pd.read_parquet(plan.folder / "passes.parquet")}
    return Outcome(plan.folder, summary.claims, {**tables, **rows}, summary)


def preregister(plan: Plan) -> str:
    """Writes the claims, margins, seeds and options of a run that has not begun; returns their hash."""
    assert plan.options.preregister is not None
    return _registration(plan).write(plan.options.preregister, plan.folder)


def _registration(plan: Plan) -> Registration:
    files = ("data", "squad", "hellaswag")
    setting = plan.spec | {"models": [variant.name for variant in plan.variants]}
    seeds = sorted({variant.seed for variant in plan.variants})
    sources = (claims, robustness, cells, published)
    return Registration.of(STUDY, plan.options, setting, seeds, RULES, sources, files)


def _profile_models(plan: Plan) -> dict[str, str]:
    """Evaluates every model; returns why those that could not be were skipped."""
    checkpoints, missing = read_checkpoints(plan.models)
    skipped = {v.name: missing[v.checkpoint] for v in plan.variants if v.checkpoint in missing}
    for variant in plan.variants:
        if variant.name in skipped:
            continue
        try:
            profile_model(plan, checkpoints[variant.checkpoint], variant)
        except DropscopeError as error:
            if len(plan.variants) == 1:
                raise
            skipped[variant.name] = str(error)
        except torch.OutOfMemoryError as error:
            skipped[variant.name] = f"it does not fit into memory: {first_line(error)}"
        except Exception as error:  # a checkpoint may break in any way; the others are not to blame
            log.warning("%s failed and is left out", variant.name, exc_info=True)
            skipped[variant.name] = f"it failed: {type(error).__name__}: {first_line(error)}"
    return skipped
