"""The words of the summary that are no claims: audits, accuracies, flags, tests, recommendations.

Owns the sentences. Every number in them is in a table.
"""

from __future__ import annotations

import pandas as pd

from dropscope.report import markdown
from dropscope.studies.transformer_profile.findings import Findings
from dropscope.studies.transformer_profile.levels import pick, spread
from dropscope.studies.transformer_profile.recommend import RULE, overall
from dropscope.studies.transformer_profile.results import OVERALL, PLAIN, Evaluated


def about(f: Findings) -> list[str]:
    """Everything, in the order in which it is read."""
    cost = " A lower NLL alone may also be had from temperature scaling, at no cost per example."
    return [
        _what(f), "## Audits", *_audits(f.e), "## Accuracy", _accuracies(f), *_flags(f), "## Tests", *_tests(f),
        *_sensitivity(f), "## Recommendations", RULE + cost, *_recommended(f),
    ]  # fmt: skip


def skipped(e: Evaluated) -> list[str]:
    lines = [f"- {row.model}: {row.reason}" for row in e.skipped.itertuples(index=False)]
    return ["Models that could not be evaluated:\n\n" + "\n".join(lines)] if lines else []


def _what(f: Findings) -> str:
    e, settings = f.e, f.e.configurations[f.e.configurations.model.isin(f.e.names)]
    modes, masks, protocols = (", ".join(sorted(set(settings[name]))) for name in ("mode", "masks", "protocol"))
    noisy = f.levels[f.levels.configuration != PLAIN]
    rates = ", ".join(f"{rate:g}" for rate in sorted(set(e.models.learning_rate.dropna())))
    return (
        f"{len(e.names)} model(s) × {f.levels.configuration.nunique()} configurations; "
        f"{int(f.levels['items'].max())} items of {int(f.levels.contexts.max())} contexts; "
        f"{int(noisy.passes.max()) if len(noisy) else 0} passes; rates meant as {modes}; masks {masks}; "
        f"training {protocols}{f', learning rate {rates}' if rates else ''}. One training run per model: differences "
        "between models are also differences between training runs."
        + " So are those between configurations: each was trained for."
        * ("per_configuration" in protocols)
    )


def _audits(e: Evaluated) -> list[str]:
    settings = e.configurations[e.configurations.model.isin(e.names)]
    failed = settings[~settings.audit_ok.astype(bool)]
    asked = e.audits[e.audits.asked > 0]
    silent = asked[~asked.fired.astype(bool)]
    off = (asked.measured - asked.asked).abs()
    said = [
        f"{len(settings) - len(failed)} of {len(settings)} evaluations passed their audit; {len(asked)} times a site "
        f"was asked to drop, {len(silent)} of them silent"
        + (f"; measured rates within {off.max():.3f} of those asked." if len(asked) else ".")
    ]
    if len(failed):
        listed = [f"- {e.shown[row.model]}, {row.configuration}" for row in failed.itertuples(index=False)]
        said.append("FAILED audits, whose numbers mean nothing:\n\n" + "\n".join(listed))
    for row in list(silent.itertuples(index=False))[:20]:
        said.append(f"Silent: {row.site}, call {row.call}, in {row.model}, {row.configuration}.")
    varying = [
        f"{e.shown[model]} (std {std:.2g})"
        for model in e.names
        if e.has(model, PLAIN) and (std := spread(e.accuracies(model, PLAIN))) > 0
    ]
    said.append(
        f"NOT deterministic without dropout: {', '.join(varying)}."
        if varying
        else "The deterministic configuration has std exactly 0 in every model evaluated."
    )
    return said


def _accuracies(f: Findings) -> str:
    """Every configuration of a few models; of many, the deterministic one and the baseline."""
    rows = []
    few = len(f.e.names) <= 4
    for (model, configuration), part in f.levels.groupby(["model", "configuration"], sort=False):
        if not few and configuration not in (PLAIN, f.e.mc):
            continue
        row = {"model": f.e.shown[str(model)], "configuration": configuration}
        for one in part.itertuples(index=False):
            mark = f" [{one.floor}]" if one.floor else ""
            row[one.group] = f"{one.accuracy:.3f} ± {one.std:.3f} ({one.low:.3f} to {one.high:.3f}){mark}"
        rows.append(row)
    rest = "" if few else " The other configurations are in `tables/accuracy.md`."
    return f"Mean ± std over passes (95 % interval over contexts).{rest}\n\n{markdown(pd.DataFrame(rows))}"


def _flags(f: Findings) -> list[str]:
    low = {}
    for group in f.e.all_groups:
        floors = pick(f.levels, PLAIN, group, "floor")
        names = [f.e.shown[str(name)] for name in floors.index if floors[name]]
        if names:
            listed = f" ({', '.join(names)})" if len(names) < len(floors) else ""
            low[group] = f"{group} in {len(names)} of {len(floors)} models{listed}"
    said = []
    if low:
        said.append(
            f"Chance floor: without any dropout, {'; '.join(low.values())} not above chance. What is at chance cannot "
            "get worse, so nothing follows about its robustness."
        )
    broken = f.consistency[~f.consistency.consistent.astype(bool)]
    theirs = int((f.consistency.source == "published").sum())
    said.append(
        f"Std consistency: {(broken.source == 'here').sum()} of our {(f.consistency.source == 'here').sum()} rows and "
        f"{(broken.source == 'published').sum()} of the {theirs} published rows have an overall std below the least "
        "that the stds of their groups allow."
    )
    return said


def _tests(f: Findings) -> list[str]:
    said = []
    if len(f.within):
        part = f.within[f.within["group"] == OVERALL]
        worse, better = part[part.difference < 0], part[part.difference > 0]
        said.append(
            f"Within models, {len(part)} tests of overall accuracy, deterministic against stochastic (paired bootstrap "
            f"and cluster-robust t over contexts, both): {int(worse.beyond_05_15.sum())} worse and "
            f"{int(better.beyond_05_15.sum())} better with dropout at .05/15; {int(worse.beyond_holm.sum())} and "
            f"{int(better.beyond_holm.sum())} after Holm over all {len(f.within)} tests, groups included."
        )
    if len(f.stability) >= 4:
        for row in f.quartiles.itertuples(index=False):
            said.append(
                f"Stability quartiles on {row.group} accuracy: {row.steadiest:.3f} (steadiest) against "
                f"{row.least_steady:.3f}, p = {row.p:.3g} ({row.test}), "
                f"{'beyond' if row.beyond_05_3 else 'not beyond'} .05/3; Cohen's d over models {row.d_over_models:.2f}."
            )
    else:
        said.append("Fewer than four models: no stability quartiles.")
    for row in f.attention_or_ffn.itertuples(index=False):
        if row.group == OVERALL and row.hurts_more != "cannot be decided":
            said.append(
                f"{f.e.shown[row.model]}: {row.hurts_more} noise hurts more (accuracy at high attention minus high FFN "
                f"{row.difference:+.3f}, {row.low:+.3f} to {row.high:+.3f})."
            )
    return said


def _sensitivity(f: Findings) -> list[str]:
    if f.e.sensitivity is None or f.e.sensitivity.empty:
        return []
    lines = []
    for model, table in f.e.sensitivity.groupby("model", sort=False):
        said = []
        for group, part in table.groupby("group", sort=False):
            change = 100 * (part.accuracy - part.deterministic_accuracy)
            row = part.loc[change.idxmin()]
            place = f"{row.component} of layer {row.layer} at {row.rate:g} ({change.min():+.1f} points)"
            said.append(f"{group} by {place if change.min() < 0 else 'none'}")
        lines.append(f"- {f.e.shown.get(str(model), model)}: {', '.join(said)}")
    head = "Most disturbed by noise in one place alone (descriptive: all places share the items, the worst is picked):"
    return ["## Where in the network", f"{head}\n\n" + "\n".join(lines)]


def _recommended(f: Findings) -> list[str]:
    lines = []
    for one in overall(f.recommendations):
        if one.choice == PLAIN:
            what = "keep one deterministic pass"
        else:
            rates = f"attention {one.attention_rate:g}, FFN {one.ffn_rate:g}"
            what = f"MC dropout, {one.choice} ({rates}), {one.passes} passes"
        audit = "audit passed" if one.audit_ok else "AUDIT FAILED"
        others = [
            g for g in f.recommendations if g.model == one.model and g.group != OVERALL and g.choice != one.choice
        ]
        apart = "".join(f" On {g.group} alone: {g.choice}." for g in others)
        lines.append(f"- **{f.e.shown[one.model]}**: {what}: {one.reason} ({audit}).{apart}")
    return ["\n".join(lines)] if lines else ["No model has both a deterministic and a stochastic evaluation."]
