"""The same draw under several sets of parameters, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from tirage.errors import ParamsError
from tirage.tracing import wording
from tirage.tracing.explanation import Explanation
from tirage.tracing.html import document, table, token_mark
from tirage.tracing.records import ExplainedDraw, TokenTrace

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Explanations of one draw over the same logits, each under its own parameters; there are at least two.

    Tokens that any of them follows should be followed by all, as those of `LLM.compare` are. Raises ParamsError for
    fewer explanations, and for vocabularies of different sizes.
    """

    explanations: tuple[Explanation, ...]

    def __post_init__(self) -> None:
        if len(self.explanations) < 2 or len({each.vocab_size for each in self.explanations}) > 1:
            raise ParamsError("a comparison must be of two explanations or more, of one vocabulary")

    @property
    def agrees(self) -> bool:
        """Whether all draw the same token."""
        return len({each.token_id for each in self.explanations}) == 1

    def to_dict(self) -> dict[str, Any]:
        """Plain values for strict JSON: `agrees`, and `explanations` as `Explanation.to_dict` gives them."""
        return {"agrees": self.agrees, "explanations": [each.to_dict() for each in self.explanations]}

    def to_html(self) -> str:
        """One self-contained HTML page without scripts: the stages and tokens side by side; texts are escaped."""
        heads = ["", *map(title, self.explanations)]
        facts = [[escape(name), *map(escape, values)] for name, *values in facts_of(self.explanations)]
        rows = [[token_mark(name), *map(escape, cells)] for name, cells in token_rows(self.explanations)]
        summary = table(heads, facts, "stages")
        tokens = table(heads, rows, "tokens")
        content = f"<h1>{escape(verdict(self))}</h1><section>{summary}</section><section>{tokens}</section>"
        return document(f"tirage: {verdict(self)}", content)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table
        from rich.text import Text

        yield Text(verdict(self), "bold")
        for rows in (facts_of(self.explanations), [(name, *cells) for name, cells in token_rows(self.explanations)]):
            shown = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
            for head in ("", *map(title, self.explanations)):
                shown.add_column(Text(head), overflow="fold")
            for row in rows:
                shown.add_row(*map(Text, row))
            yield Text()
            yield shown


def title(e: ExplainedDraw) -> str:
    """The name of a column: the semantics."""
    return wording.printable(e.semantics)


def verdict(comparison: Comparison) -> str:
    """Whether the draws agree, in a sentence."""
    names = ", ".join(dict.fromkeys(map(wording.headline, comparison.explanations)))
    return f"All draw the same token: {names}" if comparison.agrees else f"The draws differ: {names}"


def facts_of(explanations: Sequence[ExplainedDraw]) -> list[tuple[str, ...]]:
    """The rows above the tokens: what is drawn, from how many, and the stages in their order."""
    return [
        ("draws", *map(wording.headline, explanations)),
        ("could be drawn", *(f"{each.support_size:,} of {each.vocab_size:,}" for each in explanations)),
        ("stages", *(", ".join(map(stage_text, each.stages[1:])) or "none" for each in explanations)),
    ]


def stage_text(stage: Any) -> str:
    """A stage with the number of candidates that it leaves."""
    return f"{stage.label} → {stage.candidates_after:,}"


def token_rows(explanations: Sequence[ExplainedDraw]) -> Iterator[tuple[str, list[str]]]:
    """For each followed token its name, and under each of the parameters its chance or what removed it."""
    traces = [{trace.token.token_id: trace for trace in each.tokens} for each in explanations]
    ids = dict.fromkeys(token_id for each in traces for token_id in each)
    for token_id in sorted(ids, key=lambda token_id: min(each[token_id].rank for each in traces if token_id in each)):
        known = next(each[token_id] for each in traces if token_id in each)
        yield known.token.shown, [chance(each.get(token_id)) for each in traces]


def chance(trace: TokenTrace | None) -> str:
    """The probability of a token, marked where it is drawn, or the stage that removed it."""
    if trace is None:
        return "not followed"
    if not trace.probability > 0:
        return "–" if trace.removed_by is None else f"– ({trace.removed_by})"
    return wording.percent(trace.probability) + (" ◀" if trace.drawn else "")
