"""The report of an audit: a page that needs nothing else, JSON, CSV, and words for a terminal."""

from kvbaton.audit.report.files import Report as Report
from kvbaton.audit.report.files import write_report as write_report

__all__ = ["Report", "write_report"]
