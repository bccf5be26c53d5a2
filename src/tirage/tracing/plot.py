"""An explanation as a figure: the law beside the model's probabilities, and each token's way through the stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tirage.errors import TirageError
from tirage.tracing import wording
from tirage.tracing.records import ExplainedDraw, TokenTrace

if TYPE_CHECKING:
    from matplotlib.axes import Axes  # pyright: ignore[reportMissingImports]
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

_ROWS = 12
_MODEL, _LAW, _GONE = "#5b7bd5", "#17803d", "#c02636"


def figure_class() -> type[Figure]:
    """matplotlib's Figure; raises TirageError without matplotlib, which the extra `plot` has."""
    try:
        from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise TirageError("a plot needs matplotlib; run: pip install 'tirage[plot]'") from None
    return Figure


def plot(e: ExplainedDraw) -> Figure:
    """The figure of an explanation; raises TirageError without matplotlib."""
    traces = shown(e)
    figure = figure_class()(figsize=(11, 0.9 + 0.32 * max(len(traces), 8)), layout="constrained")
    law, stages = figure.subplots(1, 2, width_ratios=(1, 1.25))
    # A token may hold dollar signs, which matplotlib would read as mathematics.
    figure.suptitle(f"{wording.headline(e)}  ({wording.printable(e.semantics)})", parse_math=False)
    draw_law(law, e, traces)
    draw_stages(stages, e, traces)
    return figure


def shown(e: ExplainedDraw) -> list[TokenTrace]:
    """The tokens of the figure: the likeliest of the model, and the drawn one."""
    return [trace for index, trace in enumerate(e.tokens) if index < _ROWS or trace.drawn]


def draw_law(axes: Axes, e: ExplainedDraw, traces: list[TokenTrace]) -> None:
    """Bars of each token's probability before the stages and after them, likeliest above."""
    places = [float(index) for index in range(len(traces))]
    before = [trace.model_probability for trace in traces]
    axes.barh([place - 0.2 for place in places], before, 0.38, color=_MODEL, label="model")
    after = [trace.probability for trace in traces]
    axes.barh([place + 0.2 for place in places], after, 0.38, color=_LAW, label=wording.law_title(e))
    axes.set_yticks(places, [label(trace) for trace in traces], family="monospace", parse_math=False)
    axes.invert_yaxis()
    axes.set_xlabel("probability")
    axes.legend(frameon=False, loc="lower right")
    plain(axes)


def draw_stages(axes: Axes, e: ExplainedDraw, traces: list[TokenTrace]) -> None:
    """A line for each token through the stages; a cross where one is removed."""
    heads = [f"{stage.label if index else 'model'}\n{stage.candidates_after:,}" for index, stage in enumerate(e.stages)]
    for trace in traces:
        kept = [step.probability_after for step in trace.steps if step.kept]
        colour = _LAW if trace.drawn else _MODEL
        axes.plot(
            range(len(kept)), kept, color=colour, marker="o", markersize=3.5, linewidth=1.2, zorder=2 + trace.drawn
        )
        if 0 < len(kept) < len(e.stages):
            axes.plot([len(kept) - 1, len(kept)], [kept[-1], 0], color=colour, linewidth=0.8, linestyle=":")
            axes.plot([len(kept)], [0], color=_GONE, marker="x", markersize=7, zorder=4)
    axes.set_xticks(range(len(heads)), heads, parse_math=False)
    axes.set_xlim(-0.3, len(heads) - 0.7)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("probability after the stage")
    axes.set_xlabel("stages in their order, with the number of tokens left")
    plain(axes)


def label(trace: TokenTrace) -> str:
    """A token as its tick shows it; the drawn one is pointed at."""
    return f"{'▶ ' if trace.drawn else ''}{trace.token.shown}"


def plain(axes: Any) -> None:
    """Takes the frame away, but for the two axes."""
    axes.spines[["top", "right"]].set_visible(False)
