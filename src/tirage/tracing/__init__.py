"""Why this token: every stage of one draw, as data, text and HTML.

Read in this order: `records` (what comes out), `slots` (the stages there are), `trace` (how it is recorded);
`notes`, `texts` and the views (`data`, `console`, `html`, `plot`) only put it into words, and `explanation` holds
them together. `comparison` has several explanations of one draw, `text_explanation` those of all tokens of a text.
"""

from tirage.tracing.comparison import Comparison
from tirage.tracing.explanation import Explanation
from tirage.tracing.records import Stage
from tirage.tracing.text_explanation import TextExplanation, TextToken, summaries
from tirage.tracing.texts import TokenTexts
from tirage.tracing.trace import explain

__all__ = ["Comparison", "Explanation", "Stage", "TextExplanation", "TextToken", "TokenTexts", "explain", "summaries"]
