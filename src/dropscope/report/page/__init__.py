"""The report that people show around: one HTML file about runs, with a JSON twin and JUnit."""

from dropscope.report.page.reports import Report, framed, write_report

__all__ = ["Report", "framed", "write_report"]
