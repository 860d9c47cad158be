"""Sites, placements resolved on a model, noise put into it, and the audits that prove it took effect."""

from dropscope.injection.audits import Audit, audit, audit_live
from dropscope.injection.families import FIELDS, with_rates
from dropscope.injection.injector import disturbed, injected
from dropscope.injection.observer import watch
from dropscope.injection.resolution import SiteNoise, resolve
from dropscope.injection.sites import Site, SiteMap, examine, find_sites, require_sites

__all__ = [
    "FIELDS",
    "Audit",
    "Site",
    "SiteMap",
    "SiteNoise",
    "audit",
    "audit_live",
    "disturbed",
    "examine",
    "find_sites",
    "injected",
    "require_sites",
    "resolve",
    "watch",
    "with_rates",
]
