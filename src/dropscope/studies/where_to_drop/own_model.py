"""The user's own trained classifier as a task: its maskable layers, and its examples in two halves.

One half chooses a placement, the other reports on it.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dropscope.analysis import group_numbers
from dropscope.data import read_data
from dropscope.errors import BadInput, Phrase, first_line, nearest
from dropscope.injection import Site, find_sites
from dropscope.loading import find_column, read_table
from dropscope.model import Call, code_fingerprint, device_of, digest, unwrap, weights_fingerprint
from dropscope.studies.where_to_drop.tasks import Inputs, Task, take

LAYERS_AT_MOST = 4  # a grid of nine rates over five layers is 99,999 placements
_KINDS = ("conv", "linear", "attention", "ffn", "recurrent")


def own_task(
    model: nn.Module,
    data: Any,
    sites: Sequence[str] | None = None,
    limit: int | None = None,
    groups: Sequence[Hashable] | None = None,
    keys: Any = None,
) -> Task:
    """The task of a trained model on labelled examples: one random half to choose on, the other to report on.

    Inputs are a tensor, several, or tensors by name, as a transformer takes them. Examples of one group (a patient, a
    document) stay in one half, and are resampled together.
    """
    net = unwrap(model)
    inputs, labels, fingerprint = _read(data, keys, _pad_token(net))
    available = find_sites(net, _to_device(take(inputs, torch.arange(2)), device_of(net)))
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
    choose, report = (half[:limit].sort().values for half in _halves(len(labels), groups))
    about = {"data": fingerprint, "weights": weights_fingerprint(net), "code": code_fingerprint(net)}
    if groups is not None:
        about["groups"] = digest([str(group) for group in groups])
        remarks.append(f"{len(labels):,} examples of {len({*groups}):,} groups, none of them in both halves.")
    return Task(
        name=type(net).__name__,
        layers=tuple(layers),
        penultimate=tuple(layers[-1:]),
        build=lambda: copy.deepcopy(net),
        train=None,
        validation=(take(inputs, choose), labels[choose]),
        test=(take(inputs, report), labels[report]),
        positions=Task.positions if all({*Task.positions} <= given for given in offered) else ("auto",),
        masks_inputs=all("input" in given for given in offered),
        test_groups=None if groups is None else [str(groups[i]) for i in report.tolist()],
        about={"task": "own", **about, "layers": list(layers)},
        remarks=tuple(remarks),
    )


def _halves(count: int, groups: Sequence[Hashable] | None) -> tuple[Tensor, Tensor]:
    """Numbers of the examples to choose on and to report on, in random order; always the same for the same data."""
    draw = torch.Generator().manual_seed(0)
    if groups is None:
        order = torch.randperm(count, generator=draw)
        return order[: count // 2], order[count // 2 :]
    member = torch.from_numpy(group_numbers(groups))
    order = torch.randperm(int(member.max()) + 1, generator=draw)
    first = torch.isin(member, order[: len(order) // 2])
    mixed = torch.randperm(count, generator=draw)
    return mixed[first[mixed]], mixed[~first[mixed]]


def _read(data: Any, keys: Any, pad_token: int) -> tuple[Inputs, Tensor, str]:
    read = read_data(data, batch_size=256, keys=keys, pad_token_id=pad_token)
    if read.labels is None:
        raise BadInput("data must have labels", "data", Phrase("no labels"), "pass labelled examples")
    if read.n < 4:
        what = "data must have at least 4 examples, half to choose a placement and half to report on it"
        raise BadInput(what, "data", Phrase(f"{read.n} examples"), "pass more")
    inputs = _join([batch.call for batch in read.batches], pad_token)
    tensors = list(inputs.values()) if isinstance(inputs, dict) else inputs if isinstance(inputs, tuple) else [inputs]
    for values in tensors:
        broken = (~torch.isfinite(values)).flatten(1).any(1).nonzero().flatten().tolist()
        if broken:
            first = f"the first is number {broken[0]}, from 0"
            got = Phrase(f"NaN or infinity in {len(broken)} of {read.n} examples ({first})")
            raise BadInput("data must be finite numbers", "data", got, "repair these examples, or leave them out")
    return inputs, read.labels, read.fingerprint


def _join(calls: Sequence[Call], pad_token: int) -> Inputs:
    """The inputs of all batches as one: a tensor, several, or tensors by name. Shorter texts are padded."""
    if any(bool(call.args) == bool(call.kwargs) for call in calls):
        got = Phrase("inputs both by position and by name")
        raise BadInput("data must have inputs by position, or by name", "data", got, "give all of them by name")
    if calls[0].kwargs:
        padded = "attention_mask" in calls[0].kwargs
        names = [name for name, value in calls[0].kwargs.items() if isinstance(value, Tensor)]
        fill = {name: pad_token if name == "input_ids" else 0 for name in names} if padded else {}
        return {name: _cat([call.kwargs[name] for call in calls], fill.get(name)) for name in names}
    columns = [_cat([call.args[place] for call in calls], None) for place in range(len(calls[0].args))]
    return columns[0] if len(columns) == 1 else tuple(columns)


def _cat(parts: Sequence[Any], fill: int | None) -> Tensor:
    if fill is not None:
        longest = max(part.shape[1] for part in parts)
        parts = [F.pad(part, (0, longest - part.shape[1]), value=fill) for part in parts]
    try:
        return torch.cat(list(parts))
    except (RuntimeError, TypeError) as error:
        got = Phrase(first_line(error))
        raise BadInput("data must have examples of one shape", "data", got, "resize them: image_size=224") from error


def _pad_token(net: nn.Module) -> int:
    return int(getattr(getattr(net, "config", None), "pad_token_id", None) or 0)


def _to_device(inputs: Inputs, device: torch.device) -> Inputs:
    if isinstance(inputs, Tensor):
        return inputs.to(device)
    if isinstance(inputs, dict):
        return {name: value.to(device) for name, value in inputs.items()}
    return tuple(value.to(device) for value in inputs)


def read_groups(data: str, labels: str | None, column: str | None, names: Sequence[str] | None) -> list[str] | None:
    """The group of every example: a column of the table of texts, or of the table of labels of an image folder.

    Raises:
        BadInput: Where there is no such table or column, or it has other rows than the data.
    """
    if column is None:
        return None
    folder = Path(data)
    table_file = Path(labels) if labels else folder / "labels.csv" if folder.is_dir() else folder
    if table_file.suffix not in (".csv", ".jsonl", ".parquet"):
        remedy = "give the data as a table, or an image folder with a table of labels"
        raise BadInput("group_column must be a column of a table", "group_column", column, remedy)
    table = read_table(table_file, "data")
    groups = [str(value) for value in table[find_column(table, table_file, column, (), "group_column")]]
    if folder.is_dir() and names is not None:
        files = map(str, table[find_column(table, table_file, None, ("file",), "file")])
        of_file = dict(zip(files, groups, strict=True))
        groups = [of_file[name] for name in names if name in of_file]
    if names is not None and len(groups) != len(names):
        got = Phrase(f"{len(groups)} groups for {len(names)} examples")
        raise BadInput("group_column must have a group for every example", "group_column", got, "fill in the table")
    return groups


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
