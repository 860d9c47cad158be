"""Reports of studies: claims, tables, summaries and figures."""

from dropscope.report.claims import (
    ALPHA,
    Claim,
    Direction,
    Verdict,
    all_of,
    any_of,
    claims_table,
    decide,
    decide_all,
    format_estimate,
)
from dropscope.report.figures import accuracy_curves, evidence, set_log_scale, share_legend
from dropscope.report.writing import (
    SPEC,
    claim_folder,
    markdown,
    new_figure,
    write_figure,
    write_summary,
    write_table,
    write_text,
)

__all__ = [
    "ALPHA",
    "SPEC",
    "Claim",
    "Direction",
    "Verdict",
    "accuracy_curves",
    "all_of",
    "any_of",
    "claim_folder",
    "claims_table",
    "decide",
    "decide_all",
    "evidence",
    "format_estimate",
    "markdown",
    "new_figure",
    "set_log_scale",
    "share_legend",
    "write_figure",
    "write_summary",
    "write_table",
    "write_text",
]
