"""The explanation of one draw, and its three views: data, text and HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tirage.tracing.data import plain
from tirage.tracing.html import framed, page
from tirage.tracing.records import ExplainedDraw

if TYPE_CHECKING:
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]
    from rich.console import Console, ConsoleOptions, RenderResult


class Explanation(ExplainedDraw):
    """Why one row got its token. Print it, put it in a notebook, or take it apart: it has all of an ExplainedDraw."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for strict JSON, the keys always the same.

        Logits and probabilities that JSON cannot hold are the strings "-inf", "inf" and "nan"; integers beyond
        2^53 (W, U, R, interval ends, seed) are strings of decimal digits.
        """
        return plain(self)

    def to_html(self) -> str:
        """One self-contained HTML page: no script, nothing loaded from outside, token text escaped."""
        return page(self)

    def plot(self) -> Figure:
        """A matplotlib Figure: each token's probability before and after, and its way through the stages.

        Raises TirageError without matplotlib, which the extra `plot` has.
        """
        from tirage.tracing.plot import plot

        return plot(self)

    def __str__(self) -> str:
        # Rich takes a while to import, and only this view needs it.
        from tirage.tracing.console import as_text

        return as_text(self)

    def __repr__(self) -> str:
        return f"<Explanation of token {self.token_id}, {self.status.name}, {len(self.stages)} stages>"

    def _repr_html_(self) -> str:
        return framed(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from tirage.tracing.console import render

        yield from render(self, options.max_width)
