"""From scores to decisions: deferral rules with a guarantee."""

from dropscope.deploy.deferral import defer
from dropscope.deploy.rules import DeferralRule

__all__ = ["DeferralRule", "defer"]
