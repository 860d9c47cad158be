"""Reports of studies: claims, tables, summaries and figures."""

from dropscope.report.claims import Claim, Verdict, claims_table, format_estimate, verdict_of_interval
from dropscope.report.figures import accuracy_curves
from dropscope.report.writing import (
    claim_folder,
    markdown,
    new_figure,
    write_figure,
    write_summary,
    write_table,
    write_text,
)

__all__ = [
    "Claim",
    "Verdict",
    "accuracy_curves",
    "claim_folder",
    "claims_table",
    "format_estimate",
    "markdown",
    "new_figure",
    "verdict_of_interval",
    "write_figure",
    "write_summary",
    "write_table",
    "write_text",
]
