"""Tables as an evaluation of study S2 leaves them, drawn from a simulation whose effects are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

RATES = {
    "deterministic": (0.0, 0.0),
    "baseline": (0.1, 0.1),
    "high_attention": (0.6, 0.1),
    "high_ffn": (0.1, 0.6),
    "high_both": (0.6, 0.6),
}
NINETEEN = (
    ("bert-base-uncased", "bert", "encoder", 110), ("bert-large-uncased", "bert", "encoder", 335),
    ("prajjwal1/bert-tiny", "bert", "encoder", 4), ("roberta-base", "roberta", "encoder", 125),
    ("distilroberta-base", "roberta", "encoder", 82), ("deepset/roberta-base-squad2", "roberta", "encoder", 125),
    ("microsoft/deberta-v3-base", "deberta-v2", "encoder", 184),
    ("microsoft/deberta-v3-small", "deberta-v2", "encoder", 141), ("albert-base-v2", "albert", "encoder", 12),
    ("google/electra-base-discriminator", "electra", "encoder", 110),
    ("distilbert-base-uncased", "distilbert", "encoder", 66), ("SpanBERT/spanbert-base-cased", "bert", "encoder", 108),
    ("allenai/scibert_scivocab_uncased", "bert", "encoder", 110),
    ("sentence-transformers/all-MiniLM-L6-v2", "bert", "encoder", 23), ("gpt2", "gpt2", "decoder", 124),
    ("openai-community/gpt2-medium", "gpt2", "decoder", 355), ("distilgpt2", "gpt2", "decoder", 82),
    ("sshleifer/tiny-gpt2", "gpt2", "decoder", 1), ("EleutherAI/gpt-neo-125m", "gpt_neo", "decoder", 125),
)  # fmt: skip
SPECIALISED = ("squad2", "scibert", "spanbert", "MiniLM")


def simulate(
    folder: Path,
    models: Sequence[tuple[str, str, str, int]] = NINETEEN,
    *,
    skill: Mapping[str, float] | None = None,
    harm: float = 1.0,
    classes: int = 2,
    contexts: int = 50,
    passes: int = 30,
    skipped: Sequence[str] = (),
    sensitivity: bool = True,
    seed: int = 0,
) -> Path:
    """`skill` is the mean logit of the right class by group (0: chance); `harm` scales what noise takes of it."""
    draw = np.random.default_rng(seed)
    skill = {"memory": 2.0, "reasoning": 0.15} if skill is None else skill
    items = _items(draw, list(skill), contexts, classes)
    tables: dict[str, list[pd.DataFrame]] = {name: [] for name in ("configurations", "passes", "items", "audits")}
    listed = []
    for name, family, kind, millions in models:
        listed.append({
            "model": name, "family": family, "kind": kind, "parameters": millions * 10**6,
            "specialised": any(word in name for word in SPECIALISED), "status": "ok", "reason": "",
            "seconds_training": 12.0, "learning_rate": 2e-5, "remarks": "",
        })  # fmt: skip
        size = 0.7 + 0.12 * np.log10(millions) + 0.1 * draw.normal()
        level = items["group"].map(skill).to_numpy(float) * size
        logits = draw.normal(size=(len(items), classes)) * 0.8
        logits[np.arange(len(items)), items.label] += level + 0.8 * draw.normal(size=len(items))
        for configuration, (attention, ffn) in RATES.items():
            lost = harm * (0.15 * attention + 0.9 * attention * attention + 0.2 * ffn + 1.2 * ffn * ffn)
            spread = 1.2 * (attention + ffn)
            noise = spread * draw.normal(size=(passes, len(items), classes))
            rows = _evaluated(items, logits * max(0.0, 1 - lost) + noise)
            named = {"model": name, "configuration": configuration}
            for key, table in rows.items():
                tables[key].append(table.assign(**named))
            tables["audits"].append(_audits(draw, attention, ffn).assign(**named))
            tables["configurations"].append(pd.DataFrame([named | {
                "attention_rate": attention, "ffn_rate": ffn, "mode": "config", "masks": "per_example",
                "protocol": "once", "placement": f"attention={attention},ffn={ffn}", "placement_digest": "0",
                "audit_ok": True, "seconds": 1.0,
            }]))  # fmt: skip
    for name in skipped:
        listed.append({**listed[0], "model": name, "status": "skipped", "reason": "not to be had", "parameters": 0})
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(listed).to_parquet(folder / "models.parquet")
    for name, parts in tables.items():
        pd.concat(parts, ignore_index=True).to_parquet(folder / f"{name}.parquet")
    if sensitivity:
        _sensitivity(draw, models[0][0], list(skill)).to_parquet(folder / "sensitivity.parquet")
    return folder


def _items(draw: np.random.Generator, groups: list[str], contexts: int, classes: int) -> pd.DataFrame:
    rows = [
        {"item": f"{group}-{c}-{k}", "context": f"{group}-{c}", "group": group, "label": (c + k) % classes}
        for group in groups
        for c in range(contexts)
        for k in range(2)
    ]
    return pd.DataFrame(rows).sample(frac=1, random_state=int(draw.integers(1000))).reset_index(drop=True)


def _evaluated(items: pd.DataFrame, logits: np.ndarray) -> dict[str, pd.DataFrame]:
    """The rows of passes and items from logits `[passes, n, C]`."""
    exponent = np.exp(logits - logits.max(-1, keepdims=True))
    p = exponent / exponent.sum(-1, keepdims=True)
    right = p.argmax(-1) == items.label.to_numpy()
    mean = p.mean(0)
    entropy = -(mean * np.log(mean)).sum(-1)
    groups = {"overall": np.ones(len(items), bool)} | {
        g: (items["group"] == g).to_numpy() for g in sorted(set(items["group"]))
    }
    passes = [
        pd.DataFrame({"pass": range(len(p)), "group": group, "accuracy": right[:, chosen].mean(1)})
        for group, chosen in groups.items()
    ]
    found = items.assign(
        prediction=mean.argmax(-1), correct=mean.argmax(-1) == items.label.to_numpy(), frequency=right.mean(0),
        probability=list(mean), predictive_entropy=entropy,
        bald=np.maximum(entropy + (p * np.log(p)).sum(-1).mean(0), 0),
    )  # fmt: skip
    return {"passes": pd.concat(passes, ignore_index=True), "items": found}


def _audits(draw: np.random.Generator, attention: float, ffn: float) -> pd.DataFrame:
    rows = [
        {"site": f"layer.{at}.{part}@output", "call": 0, "asked": rate, "fired": rate > 0,
         "measured": rate + (draw.normal() * 0.004 if rate else 0.0)}
        for at in range(3) for part, rate in (("attention", attention), ("ffn", ffn))
    ]  # fmt: skip
    return pd.DataFrame(rows)


def _sensitivity(draw: np.random.Generator, model: str, groups: list[str]) -> pd.DataFrame:
    rows = []
    for group in ("overall", *groups):
        for layer in range(12):
            for component in ("attention", "ffn"):
                deep = (layer / 11) * (0.2 if component == "ffn" else 0.1) * (1.5 if group == groups[0] else 0.3)
                rows.append({
                    "model": model, "layer": layer, "component": component, "group": group, "rate": 0.6,
                    "accuracy": 0.8 - deep + 0.01 * draw.normal(), "std": 0.01, "deterministic_accuracy": 0.8,
                })  # fmt: skip
    return pd.DataFrame(rows)
