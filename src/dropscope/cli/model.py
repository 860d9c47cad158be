"""Commands for one model: sites, audit, sweep."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from dropscope.checks import check_passes
from dropscope.cli.app import app
from dropscope.cli.console import print_audit, print_json, print_plan, print_rows, print_sites, records, stderr, stdout
from dropscope.cli.options import (
    AsJson,
    ClusterAddress,
    DataOptions,
    DryRun,
    LabelRule,
    Memory,
    ModelName,
    Objective,
    Passes,
    PassOptions,
    PlacementText,
    RunFolder,
    Seed,
    ShardText,
    Workers,
    takes_records,
)
from dropscope.cli.placements import PlacementOptions
from dropscope.errors import BadInput
from dropscope.placement import Placement

if TYPE_CHECKING:
    from dropscope.injection import SiteMap
    from dropscope.loading import LoadedData, LoadedModel
    from dropscope.runs import Run
    from dropscope.tracing import Point

Read = TypeVar("Read")
HIDDEN_KINDS = ("block", "norm", "activation")


@app.command()
@takes_records()
def sites(
    model: ModelName,
    source: DataOptions,
    show_all: Annotated[bool, typer.Option("--all", help="Show blocks, norms and activations too.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """List the sites of a model, in call order: the places where noise can go."""
    loaded, example = _load(model, source)
    if dry_run:
        print_plan(_describe(loaded, example), [], as_json)
        return
    site_map = site_map_of(loaded, example)
    if as_json:
        print_json({"model": loaded.name, **_as_record(site_map)})
        return
    print_sites([site for site in site_map.sites if show_all or site.kind not in HIDDEN_KINDS])
    hidden = [] if show_all else [site.kind for site in site_map.sites if site.kind in HIDDEN_KINDS]
    if hidden:
        counts = ", ".join(f"{hidden.count(kind)} of kind {kind}" for kind in HIDDEN_KINDS if kind in hidden)
        stdout().print(f"hidden: {counts} (--all shows them)")
    for remark in _remarks(site_map):
        stdout().print(remark)


@app.command()
@takes_records()
def audit(
    model: ModelName,
    placement: PlacementText,
    source: DataOptions,
    seed: Seed = 0,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Check that noise takes effect where a placement asks for it, at the rate it asks for, and nowhere else."""
    # A mistake in it is reported before torch is imported.
    parsed = with_noises(model, lambda: Placement.parse(placement))
    from dropscope.injection import Audited, audit_resolved, resolve
    from dropscope.model import Call, unwrap

    loaded, example = _load(model, source)
    audited = Audited(unwrap(loaded.module), site_map_of(loaded, example), Call.of(example), seed)
    resolved = resolve(parsed, audited.site_map)
    if dry_run:
        noise = [{"site": _address(point), "noise": s.noise, "rate": s.rate} for point, s in resolved.items()]
        print_plan(_describe(loaded, example), noise, as_json)
        return
    report = audit_resolved(audited, resolved, parsed)
    if as_json:
        print_json({**asdict(report), "placement": str(report.placement), "ok": report.ok})
    else:
        print_audit(report)
    if not report.ok:
        raise typer.Exit(1)


@app.command()
@takes_records()
def sweep(
    model: ModelName,
    source: DataOptions,
    asked: PlacementOptions,
    how: PassOptions,
    passes: Passes = 100,
    label: LabelRule = "mean",
    objective: Objective = "aurc",
    out: RunFolder = None,
    shard: ShardText = None,
    workers: Workers = None,
    cluster: ClusterAddress = None,
    memory: Memory = "auto",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Score many placements on the same examples, beside one plain pass."""
    placements = with_noises(model, asked.chosen)  # a mistake in it is reported before torch is imported
    check_passes(passes)
    if shard is not None and out is None:
        raise BadInput("out must be given with shard", "out", None, "write out='results', a folder all shards see")
    from dropscope.runs import Shard, plan_sweep, sweep_shard
    from dropscope.runs import sweep as run_sweep

    if shard is not None:
        Shard.parse(shard)
    loaded, dataset = load_both(model, source)
    options: dict[str, Any] = {**asdict(how), "label": label, "memory": memory, "out": out}
    if dry_run:
        with asked.explained():
            plan = plan_sweep(loaded.module, placements, dataset, passes, **options)
        print_json(asdict(plan)) if as_json else stdout().print(str(plan), soft_wrap=True)
        return
    given = loaded.module, placements, dataset, passes
    options |= {"objective": objective, "progress": None, "workers": workers, "cluster": cluster}
    if shard is None:
        with asked.explained():
            run = run_sweep(*given, **options)
        _print_run(run, objective, as_json)
        return
    with asked.explained():
        done = sweep_shard(*given, shard=shard, **options)
    if done.run is not None:
        _print_run(done.run, objective, as_json)
    elif as_json:
        print_json({name: value for name, value in vars(done).items() if name != "run"} | {"folder": str(done.folder)})
    else:
        stdout().print(str(done), soft_wrap=True)


def _print_run(run: Run, objective: str, as_json: bool) -> None:
    best, baseline = run.best(objective, 10), run.with_intervals(run.baseline, objective)
    if as_json:
        judged = None if run.verdict is None else {"word": run.verdict.word, **asdict(run.verdict)}
        answer = {"best": records(best), "baseline": records(baseline), "levels": run.levels, "verdict": judged}
        print_json({**answer, "engine": run.engine, "folder": None if run.folder is None else str(run.folder)})
        return
    import pandas as pd

    print_rows(pd.concat([best, baseline]), objective, run.levels)
    _print_verdict(run)
    stdout().print(f"{len(run.rows)} rows by the {run.engine} engine" + (f" in {run.folder}" if run.folder else ""))


def _print_verdict(run: Run) -> None:
    """What the best row is worth against one plain pass, and what deferring by either would do, as a picture."""
    if run.verdict is None:
        return
    stdout().print(f"\nVerdict: {run.verdict}")
    if run.verdict.word == "undecided":
        stdout().print("dropscope try picks and judges on different examples, which can tell smaller differences.")
    if isinstance(run.folder, Path):
        from dropscope.report import accuracy_curves

        picture = run.folder / "curves.png"
        accuracy_curves(run.rankings(), picture, "What deferring the most uncertain examples would do")
        stdout().print(f"picture: {picture}", soft_wrap=True)


# --- shared by the commands -------------------------------------------------------------------------------------------


def with_noises(model: str, read: Callable[[], Read]) -> Read:
    """What `read` reads; noise that is not known yet may be registered by the model's code, which is then run first."""
    try:
        return read()
    except BadInput as error:
        if error.name != "noise":
            raise
        from dropscope.loading import run_model_code

        run_model_code(model)
        return read()


def load_model(name: str) -> LoadedModel:
    """The model, with its remarks on stderr."""
    from dropscope.progress import stage

    # Elsewhere than on a terminal a mistake in the name stays one line.
    what = "loading the model" if name.startswith("hf:") else f"running the code of {name.rpartition(':')[0]}"
    with stage(what, show=None if sys.stderr.isatty() else False):
        from dropscope import loading

        loaded = loading.load_model(name)
    for remark in loaded.remarks:
        stderr().print(f"remark: {remark}")
    return loaded


def load_both(model: str, source: DataOptions, *, labelled: bool = True) -> tuple[LoadedModel, LoadedData]:
    """The model and its data; a mistake in the options of the data is reported before the model is loaded."""
    opened = source.open(labelled=labelled)
    loaded = load_model(model)
    return loaded, opened(loaded)


def _load(model: str, source: DataOptions) -> tuple[LoadedModel, Any]:
    """The model, and the inputs of the first few examples."""
    from dropscope.loading import few_inputs

    loaded, data = load_both(model, source, labelled=False)
    return loaded, few_inputs(data, loaded.module)


def site_map_of(loaded: LoadedModel, example: Any) -> SiteMap:
    """The sites of a model; an example that it does not take is the data's fault."""
    from dropscope.injection import examine, require_sites
    from dropscope.model import Call, accepted, unwrap

    call = Call.of(example)
    with accepted(call):
        site_map = examine(unwrap(loaded.module), call)
    require_sites(site_map)
    return site_map


def _describe(loaded: LoadedModel, example: Any) -> dict[str, Any]:
    from dropscope.model import Call

    parameters = sum(parameter.numel() for parameter in loaded.module.parameters())
    call = Call.of(example)
    named = {**{str(i): part for i, part in enumerate(call.args)}, **call.kwargs}
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
