"""Monte Carlo Dropout with evidence: where to drop, what to measure, whether it beats one pass, and when to defer.

Public names alone. Each is imported from its room on first use, so that `import dropscope` and `dropscope --help` do
not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dropscope import measures, scores
    from dropscope.deploy import (
        DeferralRule,
        DriftCheck,
        Evaluation,
        Explanation,
        Exported,
        ExportFacts,
        Monitor,
        Predictions,
        Scored,
        Scorer,
        UncertaintyPredictor,
        VolumePredictor,
        defer,
        export,
        open_export,
        rivals,
        score,
    )
    from dropscope.deploy.rivals import Comparison, compare
    from dropscope.deploy.tuning import TunedChoice, open_choice, tune
    from dropscope.engine import PlanSummary
    from dropscope.errors import AuditFailed, BadInput, DropscopeError, MissingExtra, Unfinished
    from dropscope.injection import Audit, Noise, Site, Watch, audit, find_sites, injected, watch
    from dropscope.loading import LoadedData, load_data
    from dropscope.placement import Placement, PlacementGrid, PlacementSpace, register_noise
    from dropscope.report import Report, Synthesis, meta, write_report
    from dropscope.runs import (
        Choice,
        Judgement,
        Run,
        ShardResult,
        maps,
        open_run,
        plan_sweep,
        sample,
        score_continuations,
        sweep,
        sweep_shard,
        try_out,
        uncertainty,
    )

_ROOMS = {
    "deploy": (
        "defer",
        "DeferralRule",
        "UncertaintyPredictor",
        "VolumePredictor",
        "Predictions",
        "Evaluation",
        "Explanation",
        "DriftCheck",
        "Monitor",
        "ExportFacts",
        "Exported",
        "export",
        "open_export",
        "Scored",
        "Scorer",
        "score",
    ),
    "engine": ("PlanSummary",),
    "errors": ("AuditFailed", "BadInput", "DropscopeError", "MissingExtra", "Unfinished"),
    "injection": ("Audit", "Noise", "Site", "Watch", "audit", "find_sites", "injected", "watch"),
    "loading": ("LoadedData", "load_data"),
    "placement": ("Placement", "PlacementGrid", "PlacementSpace", "register_noise"),
    "report": ("Report", "Synthesis", "meta", "write_report"),
    "deploy.rivals": ("Comparison", "compare"),
    "deploy.tuning": ("TunedChoice", "open_choice", "tune"),
    "runs": (
        "sweep_shard",
        "ShardResult",
        "Choice",
        "Judgement",
        "Run",
        "maps",
        "open_run",
        "plan_sweep",
        "sample",
        "score_continuations",
        "sweep",
        "try_out",
        "uncertainty",
    ),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "Audit",
    "AuditFailed",
    "BadInput",
    "Choice",
    "Comparison",
    "DeferralRule",
    "DriftCheck",
    "DropscopeError",
    "Evaluation",
    "Explanation",
    "ExportFacts",
    "Exported",
    "Judgement",
    "LoadedData",
    "MissingExtra",
    "Monitor",
    "Noise",
    "Placement",
    "PlacementGrid",
    "PlacementSpace",
    "PlanSummary",
    "Predictions",
    "Report",
    "Run",
    "Scored",
    "Scorer",
    "ShardResult",
    "Site",
    "Synthesis",
    "TunedChoice",
    "UncertaintyPredictor",
    "Unfinished",
    "VolumePredictor",
    "Watch",
    "__version__",
    "audit",
    "compare",
    "defer",
    "export",
    "find_sites",
    "injected",
    "load_data",
    "maps",
    "measures",
    "meta",
    "open_choice",
    "open_export",
    "open_run",
    "plan_sweep",
    "register_noise",
    "rivals",
    "sample",
    "score",
    "score_continuations",
    "scores",
    "sweep",
    "sweep_shard",
    "try_out",
    "tune",
    "uncertainty",
    "watch",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name in ("measures", "scores", "volumes"):  # volumes stands above rooms that import this one: no static import
        return importlib.import_module(f"dropscope.{name}")
    if name == "rivals":
        return importlib.import_module("dropscope.deploy.rivals")
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'dropscope' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"dropscope.{_ROOM_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
