"""Commands for one model: sites, audit, sweep."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import pandas as pd
import typer

from dropscope.cli.app import (
    AsJson,
    DataName,
    DryRun,
    ImageSize,
    LabelColumn,
    Labels,
    ModelName,
    PlacementText,
    Seed,
    TextColumn,
    app,
    numbers,
    words,
)
from dropscope.cli.console import print_json, print_plan, print_rows, print_sites, records, stderr, stdout
from dropscope.injection import SiteMap, examine, require_sites, resolve
from dropscope.injection import audit as run_audit
from dropscope.loading import LoadedModel, few_inputs, load_data, load_model
from dropscope.model import arguments, unwrap
from dropscope.placement import Placement, PlacementGrid
from dropscope.runs import planned
from dropscope.runs import sweep as run_sweep
from dropscope.tracing import Point

HIDDEN_KINDS = ("block", "norm", "activation")


@app.command()
def sites(
    model: ModelName,
    data: DataName,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    labels: Labels = None,
    image_size: ImageSize = None,
    every: Annotated[bool, typer.Option("--all", help="Show blocks, norms and activations too.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Where noise can go in a model: its sites in call order."""
    loaded, example = _loaded(model, data, text_column, label_column, labels, image_size)
    if dry_run:
        print_plan(_described(loaded, example), [], as_json)
        return
    site_map = _examined(loaded, example)
    if as_json:
        print_json({"model": loaded.name, **_as_record(site_map)})
        return
    print_sites([site for site in site_map.sites if every or site.kind not in HIDDEN_KINDS])
    hidden = [] if every else [site.kind for site in site_map.sites if site.kind in HIDDEN_KINDS]
    if hidden:
        counts = ", ".join(f"{hidden.count(kind)} of kind {kind}" for kind in HIDDEN_KINDS if kind in hidden)
        stdout().print(f"hidden: {counts} (--all shows them)")
    for remark in _remarks(site_map):
        stdout().print(remark)


@app.command()
def audit(
    model: ModelName,
    placement: PlacementText,
    data: DataName,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    labels: Labels = None,
    image_size: ImageSize = None,
    seed: Seed = 0,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Whether noise takes effect where a placement asks for it, at the asked rate, and nowhere else."""
    parsed = Placement.parse(placement)
    loaded, example = _loaded(model, data, text_column, label_column, labels, image_size)
    if dry_run:
        live = resolve(parsed, _examined(loaded, example))
        rows = [{"site": _address(point), "noise": s.noise, "rate": s.rate} for point, s in live.items()]
        print_plan(_described(loaded, example), rows, as_json)
        return
    found = run_audit(loaded.module, parsed, example, seed=seed)
    if as_json:
        print_json({**asdict(found), "placement": str(found.placement), "ok": found.ok})
    else:
        stdout().print(str(found), soft_wrap=True)
    if not found.ok:
        raise typer.Exit(1)


@app.command()
def sweep(
    model: ModelName,
    data: DataName,
    sites: Annotated[str, typer.Option(help="Sites of the grid, comma-separated: every subset of them is tried.")],
    rates: Annotated[str, typer.Option(help="Rates, comma-separated.")] = "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9",
    positions: Annotated[str, typer.Option(help="Positions, comma-separated.")] = "auto",
    noise: Annotated[
        str, typer.Option(help="Noises, comma-separated: bernoulli, gaussian, multinomial.")
    ] = "bernoulli",
    passes: Annotated[int, typer.Option(help="Passes per placement.")] = 100,
    seed: Seed = 0,
    label: Annotated[
        str, typer.Option(help="Predict from the averaged passes (mean) or the plain pass (plain).")
    ] = "mean",
    objective: Annotated[str, typer.Option(help="Score that the best rows are chosen by.")] = "aurc",
    outputs: Annotated[
        str, typer.Option(help="What the model returns: logits, probabilities, binary_logit.")
    ] = "logits",
    out: Annotated[str | None, typer.Option(help="Folder of the run; a killed run is taken up again there.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; where the model is if not given.")] = None,
    memory: Annotated[str, typer.Option(help="Memory budget, such as 4GiB.")] = "auto",
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    labels: Labels = None,
    image_size: ImageSize = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Every placement of a grid on the same examples, scored, beside one plain pass."""
    grid = PlacementGrid(words(sites), tuple(numbers(rates, "--rates")), tuple(words(positions)), tuple(words(noise)))
    loaded = _model(model)
    found = load_data(
        data, loaded, text_column=text_column, label_column=label_column, labels=labels, image_size=image_size
    )
    options: dict[str, Any] = {
        "seed": seed, "label": label, "outputs": outputs, "device": device, "memory": memory, "out": out
    }  # fmt: skip
    if dry_run:
        plan = planned(loaded.module, grid, found, passes, **options)
        print_json(asdict(plan)) if as_json else stdout().print(str(plan), soft_wrap=True)
        return
    run = run_sweep(loaded.module, grid, found, passes, objective=objective, progress=None, **options)
    best = run.best(objective, 10)
    if as_json:
        answer = {"best": records(best), "baseline": records(run.baseline), "levels": run.levels}
        print_json({**answer, "engine": run.engine, "folder": None if run.folder is None else str(run.folder)})
        return
    print_rows(pd.concat([best, run.baseline]), objective)
    levels = run.levels["isotonic_penalty"]
    stdout().print(
        f"isotonic penalty of a random measure {levels['random']:.4f}, of a monotone one {levels['monotone']:.4f}"
    )
    stdout().print(f"{len(run.rows)} rows by the {run.engine} engine" + (f" in {run.folder}" if run.folder else ""))


# --- shared by the commands -------------------------------------------------------------------------------------------


def _loaded(
    model: str,
    data: str,
    text_column: str | None,
    label_column: str | None,
    labels: str | None,
    image_size: str | None,
) -> tuple[LoadedModel, Any]:
    """The model, and inputs of the first few examples."""
    loaded = _model(model)
    found = load_data(
        data, loaded, text_column=text_column, label_column=label_column, labels=labels, image_size=image_size
    )
    return loaded, few_inputs(found, loaded.module)


def _model(name: str) -> LoadedModel:
    loaded = load_model(name)
    for remark in loaded.remarks:
        stderr().print(f"remark: {remark}")
    return loaded


def _examined(loaded: LoadedModel, example: Any) -> SiteMap:
    site_map = examine(unwrap(loaded.module), *arguments(example))
    require_sites(site_map)
    return site_map


def _described(loaded: LoadedModel, example: Any) -> dict[str, Any]:
    parameters = sum(parameter.numel() for parameter in loaded.module.parameters())
    args, kwargs = arguments(example)
    named = {**{str(i): part for i, part in enumerate(args)}, **kwargs}
    return {
        "model": f"{loaded.name} ({type(loaded.module).__name__}, {parameters:,} parameters)",
        "inputs": {name: list(part.shape) for name, part in named.items() if hasattr(part, "shape")},
    }


def _address(point: Point) -> str:
    return f"{point.name}{f'#{point.call}' if point.call else ''}@{point.position}"


def _as_record(site_map: SiteMap) -> dict[str, Any]:
    fields = ("name", "kind", "positions", "shape", "own_rate", "role")
    return {
        "sites": [{field: getattr(site, field) for field in fields} for site in site_map.sites],
        "never_called": site_map.dead,
        "unreachable": site_map.unreachable,
        "always_on": site_map.always_on,
        "nondeterministic": site_map.nondeterministic,
    }


def _remarks(site_map: SiteMap) -> list[str]:
    return [
        *(f"remark: {name} is a dropout that is never called" for name in site_map.dead),
        *(f"remark: no site stands for {text}" for text in site_map.unreachable),
        *(f"remark: {name} is a dropout that runs in eval mode too" for name in site_map.always_on),
        *(["remark: two plain passes differ; there is randomness that no site stands for"] * site_map.nondeterministic),
    ]
