"""From the records of trials to a result: effects, verdicts, and where they come from."""

from __future__ import annotations

from kvbaton.audit.analysis.result import AuditResult
from kvbaton.audit.analysis.runs import Run, read_run
from kvbaton.audit.analysis.whole import analyse

__all__ = ["AuditResult", "Run", "analyse", "read_run"]
