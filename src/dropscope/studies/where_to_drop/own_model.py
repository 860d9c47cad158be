"""The user's own trained classifier as a task: its maskable layers, and its examples in two halves.

One half chooses a placement, the other reports on it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dropscope.data import read_data
from dropscope.errors import BadInput, Phrase, first_line, nearest
from dropscope.injection import Site, find_sites
from dropscope.model import code_fingerprint, device_of, unwrap, weights_fingerprint
from dropscope.studies.where_to_drop.tasks import Task

LAYERS_AT_MOST = 4  # a grid of nine rates over five layers is 99,999 placements
_KINDS = ("conv", "linear", "attention", "ffn", "recurrent")


def own_task(model: nn.Module, data: Any, sites: Sequence[str] | None = None, limit: int | None = None) -> Task:
    """The task of a trained model on labelled examples: one random half to choose on, the other to report on."""
    net = unwrap(model)
    images, labels, fingerprint = _read(data)
    available = find_sites(net, images[:2].to(device_of(net)))
    layers = _check_sites(sites, available) if sites else _maskable(available)
    remarks = []
    if not sites and len(layers) > LAYERS_AT_MOST:
        remarks.append(
            f"Only the last {LAYERS_AT_MOST} of {len(layers)} layers are in the grid; name others with sites."
        )
        layers = layers[-LAYERS_AT_MOST:]
    remarks.insert(0, f"Masked layers: {', '.join(layers)}; the last one counts as the penultimate.")
    by_name = {site.name: site for site in available}
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
        raise BadInput("data must have labels", "data", Phrase("no labels"), "pass labelled examples")
    calls = [batch.call for batch in read.batches]
    if any(call.kwargs or len(call.args) != 1 or not isinstance(call.args[0], Tensor) for call in calls):
        got = Phrase("several inputs, or inputs by name")
        remedy = "use dropscope.sweep for such a model"
        raise BadInput("data must have one tensor per example", "data", got, remedy)
    if read.n < 4:
        what = "data must have at least 4 examples, half to choose a placement and half to report on it"
        raise BadInput(what, "data", Phrase(f"{read.n} examples"), "pass more")
    try:
        examples = torch.cat([call.args[0] for call in calls])
    except RuntimeError as error:
        got = Phrase(first_line(error))
        raise BadInput("data must have examples of one shape", "data", got, "resize them: image_size=224") from error
    broken = (~torch.isfinite(examples)).flatten(1).any(1).nonzero().flatten().tolist()
    if broken:
        got = Phrase(f"NaN or infinity in {len(broken)} of {read.n} examples (the first is number {broken[0]}, from 0)")
        raise BadInput("data must be finite numbers", "data", got, "repair these examples, or leave them out")
    return examples, read.labels, read.fingerprint


def _maskable(available: Sequence[Site]) -> list[str]:
    """Layers in order of their calls, without the classifier, whose output is the answer itself."""
    names = [site.name for site in available if site.kind in _KINDS]
    if not names:
        got = Phrase("no layer before the classifier")
        raise BadInput("model must have a layer to mask", "model", got, "write sites=['conv1']")
    return names


def _check_sites(sites: Sequence[str], available: Sequence[Site]) -> list[str]:
    names = [site.name for site in available]
    for site in sites:
        if site.partition("@")[0].partition("#")[0] not in names:
            raise BadInput("sites must be sites of the model", "sites", site, nearest(site, names))
    layers = [site.partition("@")[0] for site in sites]
    twice = next((layer for layer in layers if layers.count(layer) > 1), None)
    if twice is not None:
        raise BadInput("sites must name every layer once", "sites", twice, "name one position of it")
    return list(sites)
