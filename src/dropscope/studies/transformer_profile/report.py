"""The report of a run: its tables, figures and claims as files, and the words of its summary.

Owns which files there are and the sentences. Every number in them is in a table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from dropscope.atomic import read_json
from dropscope.report import SPEC, Claim, Summary, evidence, markdown, write_figure, write_summary, write_table
from dropscope.studies.transformer_profile import figures
from dropscope.studies.transformer_profile.answers import answer, papers_models
from dropscope.studies.transformer_profile.claims import FEWEST, judge_claims
from dropscope.studies.transformer_profile.levels import pick, spread
from dropscope.studies.transformer_profile.networks import SENSITIVITY_RATE
from dropscope.studies.transformer_profile.options import Plan
from dropscope.studies.transformer_profile.presets import PRESETS
from dropscope.studies.transformer_profile.recommendations import RULE, overall_only
from dropscope.studies.transformer_profile.rows import OVERALL, PLAIN, Evaluations, read_rows
from dropscope.studies.transformer_profile.surface import surface_map
from dropscope.studies.transformer_profile.tables import Findings, all_tables, analyse

TITLE = "Dropout robustness and cognitive profile of transformers"
_FEW = 4  # networks that are shown one by one
_LEAST_POINTS = 0.05  # of a change that is printed
_TERMS = {
    "network, model": "a model is a checkpoint at one depth, a network one training of it",
    "deterministic, baseline, high both": "no dropout; the paper's mild rates; its highest in attention and FFN",
    "memory, reasoning": "the paper's two groups of items: SQuAD and HellaSwag",
    "NLL": "negative log-likelihood of the right answer under the averaged passes; lower is better",
    "AURC": "area under the risk-coverage curve; lower ranks errors better",
    "at chance": "the interval of the accuracy does not lie above that of always giving the most frequent answer",
}


@dataclass(frozen=True, eq=False)
class Report:
    """What a folder's rows say: tables by name, the judged claims, the answer, and the paragraphs beside them."""

    tables: dict[str, pd.DataFrame]
    claims: tuple[Claim, ...]
    answer: tuple[str, ...]
    paragraphs: tuple[str, ...]


def write_report(plan: Plan, models: pd.DataFrame) -> tuple[Summary, dict[str, pd.DataFrame]]:
    """Writes `tables/`, `figures/` and `summary.md` of a run from its rows; returns what that says first, and the
    tables."""
    report = report_rows(plan.folder)
    details = [*_method(plan, models), *report.paragraphs]
    smaller = None if plan.options.data is not None else _smaller(plan, models)
    own = plan.options.data is not None
    terms = {word: text for word, text in _TERMS.items() if not own or "memory" not in word}
    summary = write_summary(plan.folder, TITLE, report.answer, report.claims, details, smaller, terms=terms)
    return summary, report.tables


def report_rows(folder: Path) -> Report:
    """Writes `tables/` and `figures/` from the rows in a folder. Without an evaluated model there are none."""
    e = read_rows(folder)
    if not e.names:
        return Report({}, (), ("No model was evaluated.",), tuple(_skipped(e)))
    f = analyse(e)
    tables = _write_tables(folder, f)
    _write_figures(folder, f)
    few = ["Claims about models need three of them; those left undecided are not listed."] * (len(e.names) < FEWEST)
    few += _trainings(e)
    claims = tuple(claim for claim in judge_claims(f) if e.domains is not None or not claim.arithmetic)
    return Report(tables, claims, tuple(answer(f, claims)), (*_skipped(e), *_results(f), *few))


def _trainings(e: Evaluations) -> list[str]:
    """What claims about models are about, where models were trained more than once."""
    counted = set(e.models.get("counts_as", e.models.model))
    if len(counted) == len(e.names):
        return []
    rows = "models, their seeds averaged" if set(e.replicates.values()) == counted else (
        f"trainings of {'one model' if len(counted) == 1 else 'two models'}, so verdicts are about these and not about "
        "models at large"
    )  # fmt: skip
    models = f"{len(counted)} model{'s' * (len(counted) > 1)}"
    return [f"{len(e.names)} networks are trainings of {models}. Rows of the crossed tests are {rows}."]


def _write_tables(folder: Path, f: Findings) -> dict[str, pd.DataFrame]:
    names = f.e.short_names
    written = {}
    for name, (table, caption) in all_tables(f).items():
        if len(table):
            shown = table.assign(model=[names.get(str(m), m) for m in table.model]) if "model" in table else table
            write_table(folder, name, shown, caption)
            written[name] = shown
    return written


def _write_figures(folder: Path, f: Findings) -> None:
    numbered = [OVERALL, *reversed(f.e.groups)]  # as in the paper: overall, reasoning, memory
    for number, group in enumerate(numbered, start=1):
        corner = _corner(f, group, int(f.levels.passes.max()), len(f.e.names))
        write_figure(folder, f"figure_{number}_{_file_name(group)}", figures.bars(f.e, f.levels, group), corner)
    if f.e.sensitivity is not None:
        spec = read_json(folder / SPEC) if (folder / SPEC).exists() else {}
        corner = _corner(f, OVERALL, spec.get("sensitivity_passes"), 1)
        floors = pick(f.levels, PLAIN, OVERALL, "floor")
        for model in dict.fromkeys(f.e.sensitivity.model):
            if model in f.e.short_names and not floors.get(model):  # at chance there is nothing to lose
                name = f"sensitivity_{_file_name(f.e.short_names[model])}"
                write_figure(folder, name, figures.sensitivity_map(f.e, model), corner)
    if f.e.surface is not None:
        corner = _corner(f, OVERALL, int(f.levels.passes.max()), len(f.e.names))
        write_figure(folder, "response_surface", surface_map(f.e), corner)


def _corner(f: Findings, group: str, passes: int | None, models: int) -> str:
    levels = f.levels[f.levels["group"] == group]
    counts = {"items": int(levels["items"].max()), "contexts": int(levels.contexts.max())}
    return evidence(**counts, passes=passes, models=models)


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in name)


# --- words ------------------------------------------------------------------------------------------------------------


def _method(plan: Plan, models: pd.DataFrame) -> list[str]:
    options, tuning = plan.options, plan.tuning
    sides = {side: plan.items.side(side) for side in ("train", "test")}
    groups = ", ".join(f"{count} {name}" for name, count in sides["test"].groupby("group").size().items())
    how = {
        "once": f"Each network was fine-tuned once at a learning rate of {tuning.learning_rate:g} for "
        f"{_epochs(tuning.epochs)}, with the checkpoint's own dropout.",
        "per_configuration": "Each network was fine-tuned once per configuration, with the dropout that it is "
        f"evaluated under, at {tuning.learning_rate:g} for {_epochs(tuning.epochs)}.",
        "none": "The checkpoints came trained.",
    }[options.train]
    meaning = {
        "config": "what the config fields of each family reach (the hidden field also touches attention outputs, "
        "embeddings and some heads)",
        "component": "exactly the attention weights and the output of the feed-forward blocks",
    }[options.rates]
    masks = {"per_example": "every item of a pass has masks of its own", "per_pass": "all items of a pass share a mask"}
    ok = models[models.status == "ok"]
    apart = set(sides["train"].context).isdisjoint(sides["test"].context)
    none_shared = "; none shares its context with the other side" if apart and len(sides["train"]) else ""
    remarks = "".join(f" {text[0].upper()}{text[1:]}." for text in plan.items.remarks)
    return [
        f"{len(sides['train'])} items to train on, {len(sides['test'])} to test on ({groups}){none_shared}.{remarks}",
        f"{how} {len(plan.configurations)} configurations of an attention and an FFN rate, {plan.passes} passes each. "
        f"Rates are {meaning}; {masks[options.masks]}. Every evaluation was audited: `audits.parquet` has the asked "
        f"and the measured rate of every site. Two plain passes of the deterministic configuration agreed to the bit.",
        f"The sensitivity map has one site at a time at rate {SENSITIVITY_RATE:g}, {plan.sensitivity_passes} passes.",
        "### Networks",
        "\n".join(_remarks(dict(zip(ok.model, ok.remarks, strict=True)))),
    ]


def _epochs(count: int) -> str:
    return f"{count} epoch{'s' * (count != 1)}"


def _remarks(by_network: dict[str, str]) -> list[str]:
    """A line per network; where there are many, what is said of each in other numbers once, with the largest."""
    if len(by_network) <= _FEW:
        return [f"- {network}: {text}" for network, text in by_network.items()]
    kinds: dict[str, dict[str, str]] = {}
    for network, text in by_network.items():
        for remark in str(text).split("; "):
            kinds.setdefault(re.sub(r"[\d.]+", "#", remark), {})[network] = remark
    lines = []
    for said in kinds.values():
        network, most = max(said.items(), key=lambda item: [float(n) for n in re.findall(r"\d+\.?\d*", item[1])][-1:])
        which = "all networks" if len(said) == len(by_network) else f"{len(said)} of {len(by_network)} networks"
        largest = f" ({network}, the largest)" if len(set(said.values())) > 1 else ""
        lines.append(f"- {which if len(said) > 1 else network}: {most}{largest if len(said) > 1 else ''}")
    return lines


def _smaller(plan: Plan, models: pd.DataFrame) -> list[str]:
    """Where this run is smaller than the paper's."""
    paper = PRESETS["paper"]
    theirs = papers_models(models.model[models.status == "ok"])
    sizes = {
        f"models: {theirs or 'none'} of the paper's {len(paper.models)}": theirs < len(paper.models),
        f"items: {len(plan.items.table)} of {paper.items}": len(plan.items.table) < paper.items,
        f"passes: {plan.passes} of {paper.passes}": plan.passes < paper.passes,
        f"epochs: {plan.tuning.epochs} of {paper.epochs}": plan.options.train != "none"
        and plan.tuning.epochs < paper.epochs,
    }
    return [line for line, smaller in sizes.items() if smaller]


def _results(f: Findings) -> list[str]:
    cost = " A lower NLL alone may also come from temperature scaling, at no cost per example."
    return [
        _scope(f), "### Audits", *_audits(f.e), "### Accuracy", _accuracies(f), *_flags(f), "### Tests", *_tests(f),
        *_sensitivity(f), "### Recommendations", RULE + cost, *_recommendations(f),
    ]  # fmt: skip


def _skipped(e: Evaluations) -> list[str]:
    lines = [f"- {row.model}: {row.reason}" for row in e.skipped.itertuples(index=False)]
    return ["Models that could not be evaluated:\n\n" + "\n".join(lines)] if lines else []


def _scope(f: Findings) -> str:
    e, settings = f.e, f.e.configurations[f.e.configurations.model.isin(f.e.names)]
    modes, masks, protocols = (", ".join(sorted(set(settings[name]))) for name in ("mode", "masks", "protocol"))
    noisy = f.levels[f.levels.configuration != PLAIN]
    rates = ", ".join(f"{rate:g}" for rate in sorted(set(e.models.learning_rate.dropna())))
    return (
        f"{len(e.names)} network{'s' * (len(e.names) > 1)} × {f.levels.configuration.nunique()} configurations; "
        f"{int(f.levels['items'].max())} items of {int(f.levels.contexts.max())} contexts; "
        f"{int(noisy.passes.max()) if len(noisy) else 0} passes; rates meant as {modes}; masks {masks}; "
        f"training {protocols}{f', learning rate {rates}' if rates else ''}. One training run per network: "
        "differences between networks are also differences between training runs."
        + " So are those between configurations: each was trained for."
        * ("per_configuration" in protocols)
    )


def _audits(e: Evaluations) -> list[str]:
    settings = e.configurations[e.configurations.model.isin(e.names)]
    failed = settings[~settings.audit_ok.astype(bool)]
    asked = e.audits[e.audits.asked > 0]
    silent = asked[~asked.fired.astype(bool)]
    off = (asked.measured - asked.asked).abs()
    sentences = [
        f"{len(settings) - len(failed)} of {len(settings)} evaluations passed their audit; {len(asked)} times a site "
        f"was asked to drop, {len(silent)} of them silent"
        + (f"; measured rates within {off.max():.3f} of those asked." if len(asked) else ".")
    ]
    if len(failed):
        listed = [f"- {e.short_names[row.model]}, {row.configuration}" for row in failed.itertuples(index=False)]
        sentences.append("FAILED audits, whose numbers mean nothing:\n\n" + "\n".join(listed))
    sentences += [
        f"Silent: {row.site}, call {row.call}, in {row.model}, {row.configuration}."
        for row in silent.head(20).itertuples(index=False)
    ]
    varying = [
        f"{e.short_names[model]} (std {std:.2g})"
        for model in e.names
        if e.has(model, PLAIN) and (std := spread(e.accuracies(model, PLAIN))) > 0
    ]
    sentences.append(
        f"NOT deterministic without dropout: {', '.join(varying)}."
        if varying
        else "The deterministic configuration has std exactly 0 in every model evaluated."
    )
    return sentences


def _accuracies(f: Findings) -> str:
    """Every configuration of a few models; of many, the deterministic one and the baseline."""
    rows = []
    few = len(f.e.names) <= _FEW
    for (model, configuration), part in f.levels.groupby(["model", "configuration"], sort=False):
        if not few and configuration not in (PLAIN, f.e.mc):
            continue
        row = {"model": f.e.short_names[str(model)], "configuration": configuration}
        for one in part.itertuples(index=False):
            mark = f" [{one.floor}]" if one.floor else ""
            row[one.group] = f"{one.accuracy:.3f} ± {one.std:.3f} ({one.low:.3f} to {one.high:.3f}){mark}"
        rows.append(row)
    rest = "" if few else " The other configurations are in `tables/accuracy.md`."
    return (
        "Accuracy of single passes: mean ± std over passes (95 % interval over contexts). Recommendations "
        f"go by that of the averaged passes, which is another number.{rest}\n\n{markdown(pd.DataFrame(rows))}"
    )


def _flags(f: Findings) -> list[str]:
    low = {}
    for group in f.e.all_groups:
        floors = pick(f.levels, PLAIN, group, "floor")
        names = [f.e.short_names[str(name)] for name in floors.index if floors[name]]
        if names:
            listed = f" ({', '.join(names)})" if len(names) < len(floors) else ""
            low[group] = f"{group} in {len(names)} of {len(floors)} networks", listed
    sentences = []
    if low:
        sentences.append(
            f"Chance floor: without any dropout, {_listed_once(list(low.values()))} not above chance. What is at "
            "chance cannot get worse, so nothing follows about its robustness."
        )
    broken = f.consistency[~f.consistency.consistent.astype(bool)]
    theirs = int((f.consistency.source == "published").sum())
    if theirs == len(f.consistency):
        return sentences
    sentences.append(
        f"Std consistency: {(broken.source == 'here').sum()} of our {(f.consistency.source == 'here').sum()} rows and "
        f"{(broken.source == 'published').sum()} of the {theirs} published rows have an overall std below the least "
        "that the stds of their groups allow."
    )
    return sentences


def _listed_once(found: list[tuple[str, str]]) -> str:
    """Groups with their networks, which are named once where they are the same."""
    if len({names for _, names in found}) == 1:
        return f"{', '.join(words for words, _ in found)}{found[0][1]}"
    return "; ".join(f"{words}{names}" for words, names in found)


def _tests(f: Findings) -> list[str]:
    sentences = []
    if len(f.within):
        part = f.within[f.within["group"] == OVERALL]
        worse, better = part[part.difference < 0], part[part.difference > 0]
        sentences.append(
            f"Within models, {len(part)} tests of overall accuracy, deterministic against stochastic (paired bootstrap "
            f"and cluster-robust t over contexts, both): {int(worse.beyond_05_15.sum())} worse and "
            f"{int(better.beyond_05_15.sum())} better with dropout at .05/15; {int(worse.beyond_holm.sum())} and "
            f"{int(better.beyond_holm.sum())} after Holm over all {len(f.within)} tests, groups included."
        )
    if len(f.quartiles) and f.quartiles.d_over_models.notna().all():
        sentences += [
            f"Stability quartiles on {row.group} accuracy: {row.steadiest:.3f} (steadiest) against "
            f"{row.least_steady:.3f}, p = {row.p:.3g} ({row.test}), "
            f"{'beyond' if row.beyond_05_3 else 'not beyond'} .05/3; Cohen's d over models {row.d_over_models:.2f}."
            for row in f.quartiles.itertuples(index=False)
        ]
    else:
        sentences.append("Too few models for stability quartiles: a quarter needs two.")
    return sentences + [
        f"{f.e.short_names[row.model]}: {row.hurts_more} noise hurts more (accuracy at high attention minus "
        f"high FFN {row.difference:+.3f}, {row.low:+.3f} to {row.high:+.3f})."
        for row in f.attention_or_ffn.itertuples(index=False)
        if row.group == OVERALL and row.hurts_more != "undecided"
    ]


def _sensitivity(f: Findings) -> list[str]:
    if f.e.sensitivity is None or f.e.sensitivity.empty:
        return []
    lines = []
    floors = pick(f.levels, PLAIN, OVERALL, "floor")
    for model, table in f.e.sensitivity.groupby("model", sort=False):
        if floors.get(model):
            continue
        sentences = []
        for group, part in table.groupby("group", sort=False):
            change = 100 * (part.accuracy - part.deterministic_accuracy)
            row = part.loc[change.idxmin()]
            place = f"{row.component} of layer {row.layer} at {row.rate:g} ({change.min():+.1f} points)"
            sentences.append(f"{group} by {place if change.min() <= -_LEAST_POINTS else 'none'}")
        lines.append(f"- {f.e.short_names.get(str(model), model)}: {', '.join(sentences)}")
    if not lines:
        return []
    head = "Most disturbed by noise in one place alone, of networks above chance (no test: the worst place is picked):"
    return ["### Where in the network", f"{head}\n\n" + "\n".join(lines)]


def _recommendations(f: Findings) -> list[str]:
    lines = []
    for one in overall_only(f.recommendations):
        if not one.above_chance:
            what = "no recommendation"
        elif one.choice == PLAIN:
            what = "keep one deterministic pass"
        else:
            rates = f"attention {one.attention_rate:g}, FFN {one.ffn_rate:g}"
            what = f"MC dropout, {one.choice} ({rates}), {one.passes} passes"
        audit = "audit passed" if one.audit_ok else "AUDIT FAILED"
        others = [
            g
            for g in f.recommendations
            if g.model == one.model and g.group != OVERALL and g.choice != one.choice and g.above_chance
        ]
        apart = "".join(f" On {g.group} alone: {g.choice}." for g in others)
        lines.append(f"- **{f.e.short_names[one.model]}**: {what}: {one.reason} ({audit}).{apart}")
    return ["\n".join(lines)] if lines else ["No model has both a deterministic and a stochastic evaluation."]
