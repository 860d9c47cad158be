"""Reports of studies: claims, tables, summaries and figures."""

from dropscope.report.claims import (
    ALPHA,
    Claim,
    Direction,
    Evidence,
    Verdict,
    all_of,
    any_of,
    claims_table,
    decide,
    decide_all,
    deciding,
    format_estimate,
    judge,
)
from dropscope.report.figures import accuracy_curves, evidence, set_log_scale, share_legend
from dropscope.report.page import Report, write_report
from dropscope.report.records import RECORD, ClaimsRecord, read_claims, write_claims
from dropscope.report.registrations import (
    ClaimRule,
    Registration,
    registration_words,
)
from dropscope.report.summaries import Summary, Topic, by_variant, count_verdicts, write_summary
from dropscope.report.syntheses import PooledClaim, Synthesis, meta
from dropscope.report.typesetting import latex
from dropscope.report.writing import (
    SPEC,
    claim_folder,
    markdown,
    new_figure,
    write_figure,
    write_table,
    write_text,
)

__all__ = [
    "ALPHA",
    "RECORD",
    "SPEC",
    "Claim",
    "ClaimRule",
    "ClaimsRecord",
    "Direction",
    "Evidence",
    "PooledClaim",
    "Registration",
    "Report",
    "Summary",
    "Synthesis",
    "Topic",
    "Verdict",
    "accuracy_curves",
    "all_of",
    "any_of",
    "by_variant",
    "claim_folder",
    "claims_table",
    "count_verdicts",
    "decide",
    "decide_all",
    "deciding",
    "evidence",
    "format_estimate",
    "judge",
    "latex",
    "markdown",
    "meta",
    "new_figure",
    "read_claims",
    "registration_words",
    "set_log_scale",
    "share_legend",
    "write_claims",
    "write_figure",
    "write_report",
    "write_summary",
    "write_table",
    "write_text",
]
