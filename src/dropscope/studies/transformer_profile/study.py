"""Study S2: how do transformers take dropout at inference, and is it memory or reasoning that suffers?

"Dropout Robustness and Cognitive Profiling of Transformer Models via Stochastic Inference" (Caiado, Hahsler): every
model through `profile.py`, the tables through `parts.py`, then the reports and the summary. A model that cannot be had
is said and left out; the rest goes on.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from dropscope.device import as_device
from dropscope.errors import BadInput, DropscopeError
from dropscope.report import Claim, claim_folder, write_summary
from dropscope.studies.transformer_profile import reports
from dropscope.studies.transformer_profile.checkpoints import describe
from dropscope.studies.transformer_profile.configurations import CONFIGURATIONS
from dropscope.studies.transformer_profile.parts import collect
from dropscope.studies.transformer_profile.plan import PRESETS, Study
from dropscope.studies.transformer_profile.profile import SENSITIVITY_RATE, profile

log = logging.getLogger("dropscope")


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run left: its folder, the claims, and the table of models with those that were skipped."""

    out: Path
    claims: tuple[Claim, ...]
    models: pd.DataFrame


def run(study: Study, out: str | Path, device: str | torch.device | None = None, show: bool | None = None) -> Outcome:
    """Every model that can be had, through training, five configurations and the sensitivity map; then the reports.

    The folder is taken up where it was left: weights, and each model × configuration, are there or they are not.
    """
    folder, where = Path(out), as_device(device)
    claim_folder(folder, study.spec)
    study.items.save(folder / "dataset.parquet")
    found, skipped = describe(study.models)
    for name, described in found.items():
        try:
            profile(study, described, folder, where, show)
        except DropscopeError as error:
            if len(study.models) == 1:
                raise
            skipped[name] = str(error)
        except torch.OutOfMemoryError as error:
            skipped[name] = f"it does not fit into memory: {str(error).splitlines()[0]}"
        except Exception as error:  # a checkpoint may break in any way; the others are not to blame
            log.warning("%s failed and is left out", name, exc_info=True)
            skipped[name] = f"it failed: {type(error).__name__}: {' '.join(str(error).split())[:160]}"
    if len(skipped) == len(study.models):
        said = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise BadInput(
            "at least one model can be had and evaluated", "--models", said, "name a folder with a checkpoint"
        )
    models = collect(folder, {name: skipped.get(name) for name in study.models}, study.tuning.learning_rate)
    claims = tuple(reports.write_reports(folder))
    paragraphs = [*_paragraphs(study, models), *reports.summary_paragraphs(folder)]
    title = "Dropout robustness and cognitive profile of transformers"
    write_summary(folder, title, paragraphs, claims, _smaller(study, models))
    return Outcome(folder, claims, models)


def planned(study: Study) -> dict[str, Any]:
    """What `run` would do: the items, which models can be had, and how many predictions that is."""
    found, missing = describe(study.models)
    sides = {side: len(study.items.side(side)) for side in ("train", "test")}
    stochastic = sum(not configuration.deterministic for configuration in CONFIGURATIONS)
    layers = sum(int(getattr(d.config, "num_hidden_layers", 12)) for d in found.values())
    tested = sides["test"]
    return {
        "items": sides,
        "groups": study.items.side("test").groupby("group").size().to_dict(),
        "classes": list(study.items.classes),
        "models": {n: f"{d.family}, {d.kind}, at most {d.longest} tokens" for n, d in found.items()},
        "missing": missing,
        "evaluations": len(found) * len(CONFIGURATIONS),
        "passes": study.passes,
        "predictions": len(found) * (stochastic * study.passes + 2) * tested
        + 2 * layers * study.sensitivity_passes * tested,
        "rates": study.rates,
        "masks": study.masks,
        "train": study.protocol,
        "remarks": list(study.items.remarks),
    }


def _paragraphs(study: Study, models: pd.DataFrame) -> list[str]:
    sides = {side: study.items.side(side) for side in ("train", "test")}
    groups = ", ".join(f"{count} {name}" for name, count in sides["test"].groupby("group").size().items())
    how = {
        "once": f"Each model was fine-tuned once at a learning rate of {study.tuning.learning_rate:g} for "
        f"{study.tuning.epochs} epochs, with the checkpoint's own dropout.",
        "per_configuration": "Each model was fine-tuned five times, with the dropout of the configuration it is "
        f"evaluated under, at {study.tuning.learning_rate:g} for {study.tuning.epochs} epochs.",
        "none": "The checkpoints came trained.",
    }[study.protocol]
    meaning = {
        "config": "what the config fields of each family reach (the hidden field also touches attention outputs, "
        "embeddings and some heads)",
        "component": "exactly the attention weights and the output of the feed-forward blocks",
    }[study.rates]
    masks = {"per_example": "every item of a pass has masks of its own", "per_pass": "all items of a pass share a mask"}
    ok = models[models.status == "ok"]
    apart = set(sides["train"].context).isdisjoint(sides["test"].context)
    none_shared = "; none shares its context with the other side" if apart and len(sides["train"]) else ""
    remarks = "".join(f" {text[0].upper()}{text[1:]}." for text in study.items.remarks)
    return [
        f"{len(sides['train'])} items to train on, {len(sides['test'])} to test on ({groups}){none_shared}.{remarks}",
        f"{how} Five configurations of an attention and an FFN rate, {study.passes} passes each. Rates are {meaning}; "
        f"{masks[study.masks]}. Every evaluation was audited: `audits.parquet` has the asked and the measured rate of "
        f"every site. Two plain passes of the deterministic configuration agreed to the bit.",
        f"The sensitivity map has one site at a time at rate {SENSITIVITY_RATE:g}, {study.sensitivity_passes} passes.",
        "## Models",
        "\n".join(f"- {row.model}: {row.remarks}" for row in ok.itertuples()),
    ]


def _smaller(study: Study, models: pd.DataFrame) -> list[str]:
    paper = PRESETS["paper"]
    have = {
        f"models: {int((models.status == 'ok').sum())} of the paper's {len(paper.models)}": int(
            (models.status == "ok").sum()
        )
        < len(paper.models),
        f"items: {len(study.items.table)} of {paper.items}": len(study.items.table) < paper.items,
        f"passes: {study.passes} of {paper.passes}": study.passes < paper.passes,
        f"epochs: {study.tuning.epochs} of {paper.epochs}": study.protocol != "none"
        and study.tuning.epochs < paper.epochs,
    }
    return [line for line, smaller in have.items() if smaller]
