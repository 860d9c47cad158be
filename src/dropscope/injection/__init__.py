"""Sites, placements resolved on a model, noise put into it, and the audits that prove it took effect."""

from dropscope.injection.audits import Audit, Audited, Finding, audit, audit_resolved, audit_union
from dropscope.injection.families import FIELDS, with_rates
from dropscope.injection.injector import MASKS, Noise, disturbed, injected
from dropscope.injection.observer import Watch, watch
from dropscope.injection.resolution import ResolvedPlacement, SiteNoise, resolve
from dropscope.injection.roles import Site
from dropscope.injection.sites import SiteMap, examine, find_sites, require_sites

__all__ = [
    "FIELDS",
    "MASKS",
    "Audit",
    "Audited",
    "Finding",
    "Noise",
    "ResolvedPlacement",
    "Site",
    "SiteMap",
    "SiteNoise",
    "Watch",
    "audit",
    "audit_resolved",
    "audit_union",
    "disturbed",
    "examine",
    "find_sites",
    "injected",
    "require_sites",
    "resolve",
    "watch",
    "with_rates",
]
