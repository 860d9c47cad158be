"""One model through the study: trained, then five configurations and the sensitivity map, as far as they are missing.

Owns which network serves which configuration (the two protocols, or a checkpoint that comes trained).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from dropscope.errors import BadInput
from dropscope.injection import FIELDS
from dropscope.progress import track
from dropscope.studies.transformer_profile.checkpoints import Described, fingerprint, head_is_trained, load
from dropscope.studies.transformer_profile.configurations import (
    CONFIGURATIONS,
    Configuration,
    Reach,
    placement_of,
    reach,
)
from dropscope.studies.transformer_profile.evaluate import Bench, bench, evaluate
from dropscope.studies.transformer_profile.finetune import fine_tuned
from dropscope.studies.transformer_profile.parts import Parts
from dropscope.studies.transformer_profile.plan import Study
from dropscope.studies.transformer_profile.sensitivity import sensitivity
from dropscope.studies.transformer_profile.tokens import Encoded, encode

SENSITIVITY_RATE = 0.6


def profile(study: Study, described: Described, folder: Path, device: torch.device, show: bool | None) -> None:
    """Writes the parts of one model that are not there yet."""
    parts = Parts(folder, described.name)
    checkpoint = fingerprint(described)
    parts.check(checkpoint)
    if parts.complete:
        return
    if study.protocol == "per_configuration" and study.rates == "config" and described.family not in FIELDS:
        rule = "training per configuration sets the dropout fields of a family that is known"
        raise BadInput(rule, described.name, described.family, "write --rates component, or --train once")
    test, remarks = encode(described, study.items.side("test"), study.long_texts)
    said = [*described.remarks, *(f"to test on: {text}" for text in remarks)]
    train = None
    if study.protocol == "none":
        test = _as_the_checkpoint_numbers(study, described, test)
    else:
        train, remarks = encode(described, study.items.side("train"), study.long_texts)
        said += [f"to train on: {text}" for text in remarks]
    for trained_for, served in _networks(study.protocol):
        left = [configuration for configuration in served if not parts.has(configuration.name)]
        mapped = any(configuration.name == "baseline" for configuration in served) and not parts.has_sensitivity
        if not left and not mapped:
            continue
        net = _network(study, described, train, trained_for, parts, device, show)
        on = bench(net, test, device, study.precision_on(device))
        _write_facts(parts, described, checkpoint, on, said)
        by_fields = study.rates == "config" and left
        reached = reach(on.model, on.example, on.site_map, trained_for is None) if by_fields else None
        for configuration in left:
            _one_configuration(study, parts, on, configuration, reached, show)
        if mapped:
            _one_map(study, parts, on, show)


def _networks(protocol: str) -> list[tuple[Configuration | None, tuple[Configuration, ...]]]:
    """(what a network is trained for, the configurations it is evaluated under)."""
    if protocol == "per_configuration":
        return [(configuration, (configuration,)) for configuration in CONFIGURATIONS]
    return [(None, CONFIGURATIONS)]


def _network(
    study: Study,
    described: Described,
    train: Encoded | None,
    trained_for: Configuration | None,
    parts: Parts,
    device: torch.device,
    show: bool | None,
) -> nn.Module:
    classes = len(study.items.classes)
    if train is None:
        return load(described, described.config.num_labels, study.seed)
    at = parts.weights(None if trained_for is None else trained_for.name)
    about = {"data": study.items.fingerprint, "seed": study.seed, "long_texts": study.long_texts, "rates": study.rates}
    return fine_tuned(at, described, train, classes, study.tuning, about, study.seed, device, trained_for, study.rates,
                      show)  # fmt: skip


def _write_facts(parts: Parts, described: Described, checkpoint: str, on: Bench, said: list[str]) -> None:
    parts.write_model({
        "checkpoint": checkpoint, "family": described.family, "kind": described.kind,
        "specialised": described.specialised,
        "parameters": sum(parameter.numel() for parameter in on.model.parameters()),
        "remarks": [*said, f"padding is {on.padding:.1%} of the computed tokens"],
    })  # fmt: skip


def _one_configuration(
    study: Study, parts: Parts, on: Bench, configuration: Configuration, reached: Reach | None, show: bool | None
) -> None:
    placement = placement_of(configuration, study.rates, reached)
    with track(f"{parts.name}, {configuration.name}", study.passes * len(on.encoded.tokens), show=show) as tick:
        found = evaluate(on, placement, study.passes, study.masks, study.seed, tick)
    row = {
        "model": parts.name, "configuration": configuration.name, "attention_rate": configuration.attention,
        "ffn_rate": configuration.ffn, "mode": study.rates, "masks": study.masks, "protocol": study.protocol,
        "placement": str(placement), "placement_digest": placement.key, "audit_ok": True, "seconds": found.seconds,
        "precision": on.session.precision,
        "bf16_difference_mean": found.difference[0], "bf16_difference_largest": found.difference[1],
        "remarks": [*(reached.remarks if reached is not None else ()), *found.remarks],
    }  # fmt: skip
    parts.write_configuration(row, {"passes": found.passes, "items": found.items, "audits": found.audits})


def _one_map(study: Study, parts: Parts, on: Bench, show: bool | None) -> None:
    layers = int(getattr(on.model.config, "num_hidden_layers", 12))
    total = 2 * layers * study.sensitivity_passes * len(on.encoded.tokens)
    with track(f"{parts.name}, sensitivity", total, show=show) as tick:
        table = sensitivity(on, SENSITIVITY_RATE, study.sensitivity_passes, study.masks, study.seed, tick)
    parts.write_sensitivity(table)


def _as_the_checkpoint_numbers(study: Study, described: Described, test: Encoded) -> Encoded:
    """The items with labels as a classifier that comes trained numbers its classes."""
    names, classes = study.items.classes, described.config.num_labels
    if getattr(described.config, "problem_type", None) == "multi_label_classification":
        remedy = "this study is for one class per text; write --train once to train a head for that"
        raise BadInput(
            "a checkpoint that is not trained here tells classes apart", described.name, "several labels a text", remedy
        )
    if not head_is_trained(described, classes):
        raise BadInput("a checkpoint that is not trained here comes with a trained classifier", described.name,
                       "a head without weights", "write --train once")  # fmt: skip
    known = {str(name): int(number) for name, number in (described.config.label2id or {}).items()}
    if all(name in known for name in names):
        numbers = [known[name] for name in names]
    elif all(name.isdecimal() and int(name) < classes for name in names) and "0" in names:
        numbers = [int(name) for name in names]
    else:
        raise BadInput("labels are classes of the checkpoint", f"classes of {described.name}", sorted(known),
                       f"name the labels so, or number them from 0: got {list(names)}")  # fmt: skip
    table = test.table.assign(label=[numbers[label] for label in test.table.label])
    return replace(test, table=table)
