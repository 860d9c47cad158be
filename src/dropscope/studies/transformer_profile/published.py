"""The published numbers and checkpoints of study S2 (Caiado and Hahsler), printed beside ours.

Keys of the tables are the last part of a checkpoint's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import NamedTuple


@dataclass(frozen=True)
class PublishedCheckpoint:
    """A checkpoint of the paper. `millions` of parameters, as published; `specialised` for a task or a field."""

    name: str
    family: str
    kind: str  # "encoder" or "decoder"
    millions: float
    specialised: bool = False


class Row4(NamedTuple):
    """Baseline run-level accuracy and std: overall, memory, reasoning."""

    overall: float
    memory: float
    reasoning: float
    overall_std: float
    memory_std: float
    reasoning_std: float


class Row5(NamedTuple):
    """Overall accuracy: deterministic (and its std), then MC dropout at the baseline (and its std)."""

    deterministic: float
    deterministic_std: float
    mc: float
    mc_std: float


_SPECIALISED = ("deepset/roberta-base-squad2", "allenai/scibert_scivocab_uncased")  # those that the paper names
_MILLIONS: tuple[tuple[str, str, dict[str, float]], ...] = (  # kind, family, and the parameters of its checkpoints
    ("encoder", "bert", {"bert-base-uncased": 110, "bert-large-uncased": 336, "prajjwal1/bert-tiny": 4.4}),
    ("encoder", "roberta", {"roberta-base": 125, "distilroberta-base": 82, "deepset/roberta-base-squad2": 124}),
    ("encoder", "deberta-v2", {"microsoft/deberta-v3-base": 184, "microsoft/deberta-v3-small": 141}),
    ("encoder", "albert", {"albert-base-v2": 11.7}),
    ("encoder", "electra", {"google/electra-base-discriminator": 109}),
    ("encoder", "distilbert", {"distilbert-base-uncased": 66}),
    ("encoder", "bert", {"SpanBERT/spanbert-base-cased": 108, "allenai/scibert_scivocab_uncased": 110}),
    ("encoder", "bert", {"sentence-transformers/all-MiniLM-L6-v2": 22.7}),
    ("decoder", "gpt2", {"gpt2": 124, "openai-community/gpt2-medium": 355, "distilgpt2": 82}),
    ("decoder", "gpt2", {"sshleifer/tiny-gpt2": 0.1}),
    ("decoder", "gpt_neo", {"EleutherAI/gpt-neo-125m": 125}),
)
CHECKPOINTS = tuple(
    PublishedCheckpoint(name, family, kind, millions, specialised=name in _SPECIALISED)
    for kind, family, checkpoints in _MILLIONS
    for name, millions in checkpoints.items()
)
TABLE_4 = {
    "deberta-v3-small": Row4(0.796, 0.922, 0.669, 0.0161, 0.0139, 0.0527),
    "gpt2-medium": Row4(0.722, 0.922, 0.523, 0.0146, 0.0139, 0.0464),
    "scibert_scivocab_uncased": Row4(0.703, 0.870, 0.535, 0.0138, 0.0172, 0.0446),
    "spanbert-base-cased": Row4(0.701, 0.915, 0.486, 0.0143, 0.0139, 0.0464),
    "deberta-v3-base": Row4(0.700, 0.938, 0.462, 0.0156, 0.0139, 0.0526),
}
TABLE_5 = {
    "roberta-base-squad2": Row5(0.735, nan, 0.497, 0.0314),
    "albert-base-v2": Row5(0.640, 0.0129, 0.489, 0.0339),
    "deberta-v3-base": Row5(0.800, nan, 0.700, 0.0156),
    "electra-base-discriminator": Row5(0.735, nan, 0.673, 0.0191),
    "spanbert-base-cased": Row5(0.745, nan, 0.701, 0.0143),
}
TABLE_6 = {  # memory, reasoning and their gap over all models, as rounded there
    "deterministic": (0.804, 0.508, 0.296),
    "baseline": (0.792, 0.492, 0.301),
    "high_attention": (0.588, 0.479, 0.110),
    "high_ffn": (0.538, 0.494, 0.044),
    "high_both": (0.533, 0.497, 0.036),
}
KINDS = {"encoder": (0.782, 0.496, 0.286), "decoder": (0.822, 0.479, 0.344)}  # the same at the baseline
BASELINE_STD = {"gpt-neo-125m": 0.0, "roberta-base": 0.034} | {
    name: row.overall_std for name, row in TABLE_4.items()
} | {name: row.mc_std for name, row in TABLE_5.items()}  # fmt: skip
DROPS = {  # under high dropout, in the three readings the paper gives; the third is from no two rows of its table 6
    ("deterministic to high_both", "memory"): 0.27,
    ("deterministic to high_both", "reasoning"): 0.01,
    ("baseline to high_both", "memory"): 0.259,
    ("deterministic to the mean of the stochastic ones", "memory"): 0.087,
    ("deterministic to the mean of the stochastic ones", "reasoning"): 0.023,
}
SMALL, LARGE = 50_000_000, 200_000_000  # parameters: below, mid-sized between, and from there on large
CALLED_LARGE = ("deberta-v3-base",)  # quoted as a large model, whatever its parameters
MARGIN = 0.02  # of accuracy: a smaller difference does not matter
ROBUST = 0.05  # a task that loses less than this is called robust
SCORE_MARGIN = 0.01  # of ECE, Brier score and NLL
SCALE_MARGIN = 0.05  # of accuracy lost, per tenfold of the parameters: less is called unrelated to scale
RANK_MARGIN = 0.3  # of a rank correlation: a smaller one does not matter
ERROR_MARGIN = 0.1  # of the error of a prediction by size: a smaller difference does not matter
CHANCE_MARGIN = 0.1  # of accuracy: below chance plus this, a model is said to be down at chance
LEAST = (3, 30)  # models and contexts, or the reverse, below which nothing is decided
_ABSTRACT = "(abstract)"
QUOTATIONS = {
    "deterministic_beats_mc": "“53% of models suffer severe accuracy degradation under baseline MC Dropout” "
    f"{_ABSTRACT}",
    "memory_bias": f"“84% of models demonstrate memory-biased performance” {_ABSTRACT}",
    "memory_fragile": "“high dropout reduces memory accuracy by 27 percentage points while reasoning degrades only 1 "
    f"point” {_ABSTRACT}",
    "reasoning_robust": "“high dropout reduces memory accuracy by 27 percentage points while reasoning degrades only 1 "
    f"point” {_ABSTRACT}",
    "small_steady": "“Smaller models demonstrate perfect prediction stability while medium-sized models exhibit "
    f"notable volatility” {_ABSTRACT}",
    "mid_sized_best": f"“Mid-sized models achieve the best overall performance” {_ABSTRACT}",
    "large_remember": f"“larger models excel at memory tasks” {_ABSTRACT}",
    "robustness_and_scale": f"“dropout robustness is architecture-dependent and uncorrelated with scale” {_ABSTRACT}",
    "family_over_size": f"“dropout robustness is architecture-dependent and uncorrelated with scale” {_ABSTRACT}",
    "specialised_degrade": f"“task-specialized models losing up to 24 percentage points” {_ABSTRACT}",
}
DETERMINISTIC_BETTER = (10, 19)
MEMORY_BIASED = (16, 19)
TESTS_OF_A_FAMILY = 15  # the paper divides .05 by it and does not say what the 15 are
QUARTILE_TESTS = 3


def published_checkpoint(name: str) -> PublishedCheckpoint | None:
    """The checkpoint of the paper that a Hub name or a folder stands for, by the last part of its name.

    >>> published_checkpoint("models/all-MiniLM-L6-v2").name, published_checkpoint("my-model")
    ('sentence-transformers/all-MiniLM-L6-v2', None)
    """
    last = name.rstrip("/").rpartition("/")[2]
    return next((c for c in CHECKPOINTS if c.name == name or c.name.rpartition("/")[2] == last), None)
