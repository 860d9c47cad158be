"""The study on the user's own trained classifier: its layers found, its examples split into choosing and reporting."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dropscope.data import read_data
from dropscope.errors import BadInput, nearest
from dropscope.injection import Site, find_sites
from dropscope.model import code_fingerprint, device_of, unwrap, weights_fingerprint
from dropscope.studies.where_to_drop.task import Task

LAYERS_AT_MOST = 4  # a grid of nine rates over five layers is 99,999 placements
_KINDS = ("conv", "linear", "attention", "ffn", "recurrent")


def own_task(model: nn.Module, data: Any, sites: Sequence[str] | None = None, limit: int | None = None) -> Task:
    """The task of a trained model on labelled examples: one random half to choose on, the other to report on."""
    net = unwrap(model)
    images, labels, fingerprint = _read(data)
    found = find_sites(net, images[:2].to(device_of(net)))
    layers = _checked(sites, found) if sites else _maskable(found)
    remarks = [f"Masked layers: {', '.join(layers)}; the last one counts as the penultimate."]
    if not sites and len(layers) > LAYERS_AT_MOST:
        remarks.append(f"Only the last {LAYERS_AT_MOST} of {len(layers)} layers are in the grid; --sites names others.")
        layers = layers[-LAYERS_AT_MOST:]
        remarks[0] = f"Masked layers: {', '.join(layers)}; the last one counts as the penultimate."
    by_name = {site.name: site for site in found}
    plain_names = all("@" not in layer for layer in layers)
    offered = [set(by_name[layer].positions) for layer in layers] if plain_names else [set[str]()]
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    half = len(order) // 2
    choose, report = order[:half][:limit].sort().values, order[half:][:limit].sort().values
    return Task(
        name=type(net).__name__,
        layers=tuple(layers),
        penultimate=tuple(layers[-1:]),
        build=lambda: copy.deepcopy(net),
        train=None,
        validation=(images[choose], labels[choose]),
        test=(images[report], labels[report]),
        positions=Task.positions if all({*Task.positions} <= given for given in offered) else ("auto",),
        masks_inputs=all("input" in given for given in offered),
        about={
            "task": "own",
            "data": fingerprint,
            "weights": weights_fingerprint(net),
            "code": code_fingerprint(net),
            "layers": list(layers),
        },
        remarks=tuple(remarks),
    )


def _read(data: Any) -> tuple[Tensor, Tensor, str]:
    read = read_data(data, batch_size=256)
    if read.labels is None:
        raise BadInput("the study compares with labels", "--data", "no labels", "pass labelled examples")
    if any(batch.kwargs or len(batch.args) != 1 or not isinstance(batch.args[0], Tensor) for batch in read.batches):
        got = "several inputs, or inputs by name"
        raise BadInput("this study takes one tensor per example", "--data", got, "use dropscope sweep for such a model")
    if read.n < 4:
        raise BadInput("half of the examples choose, half report", "--data", f"{read.n} examples", "pass more")
    try:
        examples = torch.cat([batch.args[0] for batch in read.batches])
    except RuntimeError as error:
        got = str(error).splitlines()[0][:100]
        raise BadInput("all examples have one shape", "--data", got, "resize them: --image-size") from error
    broken = (~torch.isfinite(examples)).flatten(1).any(1).nonzero().flatten().tolist()
    if broken:
        got = f"NaN or infinity in {len(broken)} of {read.n} examples (the first is number {broken[0]}, from 0)"
        raise BadInput("an example is made of numbers", "--data", got, "repair these examples, or leave them out")
    return examples, read.labels, read.fingerprint


def _maskable(found: Sequence[Site]) -> list[str]:
    """Layers in order of their calls, without the classifier, whose output is the answer itself."""
    names = [site.name for site in found if site.kind in _KINDS]
    if len(names) < 1:
        raise BadInput("the grid needs a layer to mask", "model", "no layer before the classifier", "name --sites")
    return names


def _checked(asked: Sequence[str], found: Sequence[Site]) -> list[str]:
    names = [site.name for site in found]
    for name in asked:
        if name.partition("@")[0].partition("#")[0] not in names:
            raise BadInput("a layer of the grid is a site of the model", "--sites", name, nearest(name, names))
    layers = [name.partition("@")[0] for name in asked]
    twice = next((layer for layer in layers if layers.count(layer) > 1), None)
    if twice is not None:
        raise BadInput("a layer is in the grid once", "--sites", twice, "name one position of it")
    return list(asked)
