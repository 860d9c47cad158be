"""One model through the study: training, the five configurations and the sensitivity map, as far as they are missing.

Owns which network serves which configuration (the two protocols, or a checkpoint that is trained already).
"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from torch import nn

from dropscope.engine import Tick, quiet
from dropscope.errors import BadInput, Phrase
from dropscope.injection import FIELDS
from dropscope.loading import Checkpoint
from dropscope.placement import Placement
from dropscope.progress import track
from dropscope.studies.transformer_profile.checkpoints import (
    fingerprint,
    head_is_trained,
    is_specialised,
    kind_of,
    load_network,
    remarks_on,
)
from dropscope.studies.transformer_profile.configurations import (
    Configuration,
    Reach,
    config_reach,
    layers_of,
    placement_of,
)
from dropscope.studies.transformer_profile.evaluation import Bench, accuracies, audit, bench, evaluate
from dropscope.studies.transformer_profile.fine_tuning import Training, fine_tune
from dropscope.studies.transformer_profile.options import Plan
from dropscope.studies.transformer_profile.store import ModelParts
from dropscope.studies.transformer_profile.tokens import Encoded, encode
from dropscope.studies.transformer_profile.variants import Variant

SENSITIVITY_RATE = 0.6
_OF_A_POINT = ["item", "context", "group", "label", "frequency", "correct", "probability"]


def profile_model(plan: Plan, checkpoint: Checkpoint, variant: Variant) -> None:
    """Writes the parts of one network that are not there yet."""
    options, parts = plan.options, ModelParts(plan.folder, variant.name, plan.configurations, plan.surface)
    digest = fingerprint(checkpoint)
    parts.check(digest)
    if parts.complete:
        return
    family = checkpoint.config.model_type
    if options.train == "per_configuration" and options.rates == "config" and family not in FIELDS:
        what = f"family of {checkpoint.name} must have known dropout fields for train='per_configuration'"
        raise BadInput(what, "train", family, "write rates='component', or train='once'")
    test, cuts = encode(checkpoint, plan.items.side("test"), options.long_texts)
    remarks = [*remarks_on(checkpoint), *(f"to test on: {text}" for text in cuts)]
    train = None
    if options.train == "none":
        test = _with_checkpoint_labels(plan, checkpoint, test)
    else:
        train, cuts = encode(checkpoint, plan.items.side("train"), options.long_texts)
        remarks += [f"to train on: {text}" for text in cuts]
    for trained_for, served in _protocol(options.train, plan.configurations):
        left = [configuration for configuration in served if not parts.has(configuration.name)]
        points = [point for point in plan.surface if not parts.has_point(point)]
        unmapped = any(configuration.name == "baseline" for configuration in served) and not parts.has_sensitivity
        if not left and not unmapped and not points:
            continue
        net = _network(plan, checkpoint, variant, train, trained_for, parts)
        on = bench(net, test, plan.device, plan.precision)
        _write_facts(parts, checkpoint, variant, digest, on, remarks)
        by_fields = options.rates == "config" and (left or points)
        reach = config_reach(on.model, on.example, on.site_map, as_it_came=trained_for is None) if by_fields else None
        for configuration in left:
            _write_configuration(plan, parts, on, configuration, reach)
        if unmapped:
            _write_sensitivity(plan, parts, on)
        if points:
            _write_surface(plan, parts, on, points, reach)


def sensitivity_map(
    on: Bench, rate: float, passes: int, masks: str = "per_example", seed: int = 42, tick: Tick = quiet
) -> pd.DataFrame:
    """Where each group is disturbed: noise in one site at a time, every layer × {attention weights, feed-forward}.

    A row per site and group: mean and std over passes of the run-level accuracy, and the accuracy without noise.
    """
    plain = accuracies(on, Placement.none(), 1, masks, seed, quiet).set_index("group").accuracy
    rows, sites = [], layers_of(on.site_map)
    if sites:
        audit(on, Placement({site: rate for _, _, site in sites}), seed)
    for layer, component, site in sites:
        noisy = accuracies(on, Placement({site: rate}), passes, masks, seed, tick)
        for group, values in noisy.groupby("group", sort=False).accuracy:
            rows.append({"layer": layer, "component": component, "group": group, "rate": rate,
                         "accuracy": float(values.mean()), "std": float(values.std()),
                         "deterministic_accuracy": float(plain[group])})  # fmt: skip
    columns = ["layer", "component", "group", "rate", "accuracy", "std", "deterministic_accuracy"]
    return pd.DataFrame(rows, columns=columns)


def _protocol(
    train: str, configurations: tuple[Configuration, ...]
) -> list[tuple[Configuration | None, tuple[Configuration, ...]]]:
    """(what a network is trained for, the configurations it is evaluated under)."""
    if train == "per_configuration":
        return [(configuration, (configuration,)) for configuration in configurations]
    return [(None, configurations)]


def _network(
    plan: Plan, checkpoint: Checkpoint, variant: Variant, train: Encoded | None, trained_for: Configuration | None,
    parts: ModelParts,
) -> nn.Module:  # fmt: skip
    options, classes = plan.options, len(plan.items.classes)
    if train is None:
        return load_network(checkpoint, checkpoint.config.num_labels, options.seed)
    training = Training(
        checkpoint, train, classes, plan.tuning, variant.seed, plan.device, trained_for, options.rates,
        variant.layers, variant.scratch,
    )  # fmt: skip
    about = {
        "data": plan.items.fingerprint, "seed": variant.seed, "long_texts": options.long_texts, "rates": options.rates,
    }  # fmt: skip
    path = parts.weights(None if trained_for is None else trained_for.name)
    return fine_tune(path, training, about, show=options.progress)


def _write_facts(
    parts: ModelParts, checkpoint: Checkpoint, variant: Variant, digest: str, on: Bench, remarks: list[str]
) -> None:
    parts.write_model({
        "checkpoint": digest, "family": str(checkpoint.config.model_type), "kind": kind_of(checkpoint.config),
        "specialised": is_specialised(checkpoint.name), "counts_as": variant.model,
        "parameters": sum(parameter.numel() for parameter in on.model.parameters()),
        "remarks": [*remarks, f"padding is {on.padding:.1%} of the computed tokens"],
    })  # fmt: skip


def _write_configuration(
    plan: Plan, parts: ModelParts, on: Bench, configuration: Configuration, reach: Reach | None
) -> None:
    options = plan.options
    placement = placement_of(configuration, options.rates, reach)
    total = plan.passes * len(on.encoded.tokens)
    with track(f"{parts.name}, {configuration.name}", total, show=options.progress) as tick:
        evaluation = evaluate(on, placement, plan.passes, options.masks, options.seed, tick)
    row = {
        "model": parts.name, "configuration": configuration.name, "attention_rate": configuration.attention,
        "ffn_rate": configuration.ffn, "mode": options.rates, "masks": options.masks, "protocol": options.train,
        "placement": str(placement), "placement_digest": placement.key, "audit_ok": True,
        "seconds": evaluation.seconds, "precision": on.session.precision,
        "bf16_difference_mean": evaluation.difference[0], "bf16_difference_largest": evaluation.difference[1],
        "remarks": [*(reach.remarks if reach is not None else ()), *evaluation.remarks],
    }  # fmt: skip
    tables = {"passes": evaluation.passes, "items": evaluation.items, "audits": evaluation.audits}
    parts.write_configuration(row, tables)


def _write_sensitivity(plan: Plan, parts: ModelParts, on: Bench) -> None:
    options, passes = plan.options, plan.sensitivity_passes
    layers = int(getattr(getattr(on.model, "config", None), "num_hidden_layers", 12))
    total = 2 * layers * passes * len(on.encoded.tokens)
    with track(f"{parts.name}, sensitivity", total, show=options.progress) as tick:
        table = sensitivity_map(on, SENSITIVITY_RATE, passes, options.masks, options.seed, tick)
    parts.write_sensitivity(table)


def _write_surface(plan: Plan, parts: ModelParts, on: Bench, points: list[Configuration], reach: Reach | None) -> None:
    options, total = plan.options, len(points) * plan.passes * len(on.encoded.tokens)
    with track(f"{parts.name}, surface", total, show=options.progress) as tick:
        for point in points:
            try:
                placement = placement_of(point, options.rates, reach)
            except BadInput:  # rates that reach nothing in this family have no point
                parts.write_point(point, pd.DataFrame(columns=_OF_A_POINT))
                continue
            found = evaluate(on, placement, plan.passes, options.masks, options.seed, tick)
            parts.write_point(point, found.items[_OF_A_POINT])


def _with_checkpoint_labels(plan: Plan, checkpoint: Checkpoint, test: Encoded) -> Encoded:
    """The items with labels as a classifier that is trained already numbers its classes."""
    config, names = checkpoint.config, plan.items.classes
    classes = config.num_labels
    if getattr(config, "problem_type", None) == "multi_label_classification":
        what = f"{checkpoint.name} must give one class per text for train='none'"
        raise BadInput(what, "train", Phrase("several labels a text"), "write train='once' to train a head for that")
    if not head_is_trained(checkpoint, classes):
        what = f"{checkpoint.name} must have a trained classifier for train='none'"
        raise BadInput(what, "train", Phrase("a head without weights"), "write train='once'")
    known = {str(name): int(number) for name, number in (config.label2id or {}).items()}
    if all(name in known for name in names):
        numbers = [known[name] for name in names]
    elif all(name.isdecimal() and int(name) < classes for name in names) and "0" in names:
        numbers = [int(name) for name in names]
    else:
        what = f"labels must be classes of {checkpoint.name}: {', '.join(sorted(known))}"
        raise BadInput(what, "label_column", list(names), "name the labels so, or number them from 0")
    table = test.table.assign(label=[numbers[label] for label in test.table.label])
    return replace(test, table=table)
