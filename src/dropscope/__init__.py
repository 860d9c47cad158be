"""Monte Carlo Dropout with evidence: where to drop, what to measure, whether it beats one pass, and when to defer."""

from dropscope import measures, scores
from dropscope.audit import audit
from dropscope.errors import AuditFailed, BadInput, DropscopeError
from dropscope.grid import PlacementGrid, PlacementSpace
from dropscope.injection import injected
from dropscope.placement import Placement
from dropscope.run import Run
from dropscope.sites import Site, find_sites
from dropscope.sweep import sweep
from dropscope.uncertainty import maps, sample, uncertainty
from dropscope.version import __version__
from dropscope.watch import watch

__all__ = [
    "AuditFailed",
    "BadInput",
    "DropscopeError",
    "Placement",
    "PlacementGrid",
    "PlacementSpace",
    "Run",
    "Site",
    "__version__",
    "audit",
    "find_sites",
    "injected",
    "maps",
    "measures",
    "sample",
    "scores",
    "sweep",
    "uncertainty",
    "watch",
]
