"""Audits of servers: whether they obey the sampling parameters of a request, told from their answers alone.

`audit` asks a server and returns an `AuditReport`. The statistics are written down in docs/audit.md.
"""

from tirage.audit.audit import CHECKS, audit
from tirage.audit.finding import Finding, PresetFit
from tirage.audit.limits import AuditLimits
from tirage.audit.report import AuditReport

__all__ = ["CHECKS", "AuditLimits", "AuditReport", "Finding", "PresetFit", "audit"]
