"""Why this token: every stage of one draw, as data, text and HTML.

Read in this order: `records` (what comes out), `slots` (the stages there are), `trace` (how it is recorded);
`notes`, `texts` and the three views (`data`, `console`, `html`) only put it into words, and
`explanation` holds them together.
"""

from tirage.tracing.explanation import Explanation
from tirage.tracing.records import Stage
from tirage.tracing.trace import explain

__all__ = ["Explanation", "Stage", "explain"]
