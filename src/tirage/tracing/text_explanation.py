"""A whole text explained: each token's rank, its surprise, and which stage would have removed it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from tirage.tracing import wording
from tirage.tracing.data import number
from tirage.tracing.html import document, table, token_mark
from tirage.tracing.records import ExplainedDraw, Token, TokenTrace

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

HEAT = (0.9, 0.5, 0.2, 0.05, 0.01)
"""The probabilities at which the shade of a token changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextToken:
    """One token of a text.

    `rank`, from 1, and `model_probability` are the model's; `probability` is that of the law that the parameters make
    of it, over `support_size` tokens. `removed_by` is the stage that leaves the token out, or None. `drawn`: the
    parameters draw this token here.
    """

    token: Token
    rank: int
    model_probability: float
    probability: float
    support_size: int
    removed_by: str | None
    drawn: bool

    @classmethod
    def of(cls, trace: TokenTrace, e: ExplainedDraw) -> TextToken:
        """The token that a trace of an explanation follows."""
        return cls(
            token=trace.token,
            rank=trace.rank,
            model_probability=trace.model_probability,
            probability=trace.probability,
            support_size=e.support_size,
            removed_by=trace.removed_by,
            drawn=trace.drawn,
        )

    @property
    def surprise_bits(self) -> float:
        """-log2 of the model's probability: 0 for a token that was certain, inf for one that was impossible."""
        return -math.log2(self.model_probability) if self.model_probability > 0 else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSummary:
    """What one stage did at all tokens of a text.

    `removed_tokens` counts the tokens of the text that it leaves out; `removed_mass` is the mean share of probability
    that it removed, and `candidates` the mean number of tokens that it left.
    """

    label: str
    removed_tokens: int
    removed_mass: float
    candidates: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextExplanation:
    """Why a text has its tokens: `tokens` in their order, and what each of `stages` did to them. `prompt` is its text.

    Print it, put it in a notebook, or write `to_html()` to a file.
    """

    prompt: str
    semantics: str
    tokens: tuple[TextToken, ...]
    stages: tuple[StageSummary, ...]

    @property
    def bits_per_token(self) -> float:
        """The mean of the tokens' surprise; NaN for a text without tokens."""
        return mean([each.surprise_bits for each in self.tokens])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for strict JSON; an infinite surprise is the string "inf"."""
        return {
            "prompt": self.prompt,
            "semantics": self.semantics,
            "bits_per_token": number(self.bits_per_token),
            "tokens": [
                {
                    "token_id": each.token.token_id,
                    "text": each.token.text,
                    "shown": each.token.shown,
                    "rank": each.rank,
                    "surprise_bits": number(each.surprise_bits),
                    "model_probability": number(each.model_probability),
                    "probability": number(each.probability),
                    "support_size": each.support_size,
                    "removed_by": each.removed_by,
                    "drawn": each.drawn,
                }
                for each in self.tokens
            ],
            "stages": [
                {
                    "label": stage.label,
                    "removed_tokens": stage.removed_tokens,
                    "removed_mass": number(stage.removed_mass),
                    "candidates": stage.candidates,
                }
                for stage in self.stages
            ],
        }

    def to_html(self) -> str:
        """One self-contained HTML page without scripts: the shaded text, its stages, its tokens; texts are escaped."""
        shaded = "".join(map(span, self.tokens))
        text = f'<p class="text"><span class="quiet">{escape(self.prompt)}</span>{shaded}</p>'
        stages = table(_STAGE_HEADS, [list(map(escape, stage_row(each))) for each in self.stages], "stages")
        rows = [[token_mark(each.token.shown), *map(escape, token_row(each)[1:])] for each in self.tokens]
        content = (
            f"<h1>{escape(headline(self))}</h1><section>{text}</section><section><h2>Stages</h2>{stages}</section>"
            f"<section><h2>Tokens</h2>{table(_TOKEN_HEADS, rows, 'tokens')}</section>"
        )
        return document(f"tirage: {headline(self)}", content)

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.to_html())}" sandbox="" style="width:100%;height:40em;border:0"></iframe>'

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table
        from rich.text import Text

        yield Text(headline(self), "bold")
        for heads, rows in ((_STAGE_HEADS, map(stage_row, self.stages)), (_TOKEN_HEADS, map(token_row, self.tokens))):
            shown = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
            for index, head in enumerate(heads):
                shown.add_column(head, justify="left" if index in (0, len(heads) - 1) else "right")
            for row in rows:
                shown.add_row(*map(Text, row))
            yield Text()
            yield shown


_STAGE_HEADS = ("stage", "removed of the text", "mean mass removed", "mean candidates left")
_TOKEN_HEADS = ("token", "rank", "surprise", "model", "law", "could be drawn", "removed by")


def summaries(explanations: Sequence[ExplainedDraw], tokens: Sequence[TextToken]) -> tuple[StageSummary, ...]:
    """What each stage did, over the explanations of all tokens of a text."""
    labels = dict.fromkeys(stage.label for each in explanations for stage in each.stages[1:])
    found = []
    for label in labels:
        stages = [stage for each in explanations for stage in each.stages if stage.label == label]
        found.append(
            StageSummary(
                label=label,
                removed_tokens=sum(each.removed_by == label for each in tokens),
                removed_mass=mean([stage.removed_mass for stage in stages]),
                candidates=mean([stage.candidates_after for stage in stages]),
            )
        )
    return tuple(found)


def mean(values: Sequence[float]) -> float:
    """The mean of numbers; NaN for none."""
    return sum(values) / len(values) if values else math.nan


def headline(e: TextExplanation) -> str:
    """The number of tokens with their mean surprise."""
    bits = f"{e.bits_per_token:.2f} bits of surprise each" if e.tokens else "nothing was drawn"
    return f"{len(e.tokens):,} tokens under {wording.printable(e.semantics)}: {bits}"


def span(each: TextToken) -> str:
    """A token of the shaded text; its title has the numbers."""
    shade = sum(not each.model_probability >= bound for bound in HEAT)
    removed = f", removed by {each.removed_by}" if each.removed_by else ""
    title = f"rank {each.rank}, {wording.percent(each.model_probability)}, {each.surprise_bits:.2f} bits{removed}"
    text = each.token.shown if each.token.text is None else each.token.text
    out = " gone" if each.removed_by else ""
    return f'<span class="h{shade}{out}" title="{escape(title)}">{escape(text)}</span>'


def stage_row(stage: StageSummary) -> list[str]:
    """The cells of a stage."""
    return [stage.label, f"{stage.removed_tokens:,}", wording.percent(stage.removed_mass), f"{stage.candidates:,.1f}"]


def token_row(each: TextToken) -> list[str]:
    """The cells of a token."""
    return [
        each.token.shown,
        f"{each.rank:,}",
        f"{each.surprise_bits:.2f} bits",
        wording.percent(each.model_probability),
        wording.percent(each.probability),
        f"{each.support_size:,}",
        each.removed_by or ("" if each.drawn else "(another one is drawn)"),
    ]
