"""An Explanation for the terminal, with rich, and as plain text."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tirage.tracing import wording
from tirage.tracing.explanation import Explanation, Stage, Throw, TokenTrace

_PLAIN_WIDTH = 120
_BAR = 12
_EIGHTHS = " ▏▎▍▌▋▊▉"
_KINDS = {"input": "dim", "mask": "magenta", "edit": "yellow", "filter": "cyan"}
_DRAWN = "bold green"


def as_text(e: Explanation) -> str:
    """The whole explanation without colours or control characters, 120 columns wide."""
    out = StringIO()
    console = Console(file=out, width=_PLAIN_WIDTH, color_system=None, force_terminal=False, legacy_windows=False)
    console.print(Group(*render(e, _PLAIN_WIDTH)))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def render(e: Explanation, width: int) -> Iterator[RenderableType]:
    """Headline, stages, tokens and throws, as rich renderables."""
    yield _header(e)
    yield _stage_table(e)
    if e.tokens:
        yield _token_table(e)
    for i, throw in enumerate(e.throws):
        if not throw.greedy:
            yield _throw(throw, wording.throw_title(throw, i == 0), min(width, _PLAIN_WIDTH) - 4)


def _header(e: Explanation) -> RenderableType:
    style = _DRAWN if e.token is not None else "bold red"
    facts = Text("  ·  ").join(Text.assemble((f"{key} ", "dim"), value) for key, value in wording.circumstances(e))
    lines = [Text(e.reason), facts]
    if e.coin is not None:
        lines.append(Text(wording.coin_line(e), "dim"))
    return Panel(Group(*lines), title=Text(wording.headline(e), style), title_align="left", border_style="dim")


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim", pad_edge=True)
    for title, justify in columns:
        table.add_column(title, justify=justify, no_wrap=title != "what happened")  # pyright: ignore[reportArgumentType]
    return table


# --- stages ---------------------------------------------------------------------------------------------------------


def _stage_table(e: Explanation) -> Table:
    table = _table(
        ("", "right"),
        ("stage", "left"),
        ("setting", "left"),
        ("left", "right"),
        ("removed", "right"),
        ("mass", "right"),
        ("what happened", "left"),
        ("rule", "left"),
    )
    for i, stage in enumerate(e.stages):
        table.add_row(*_stage_cells(i, stage), style="" if stage.reached else "dim")
    return table


def _stage_cells(i: int, stage: Stage) -> list[RenderableType]:
    gone, more = stage.removed_count, stage.added_count
    count = f"-{gone:,}" if gone else f"+{more:,}" if more else ""
    return [
        Text(str(i) if i else "", "dim"),
        Text(stage.label, _KINDS[stage.kind]),
        Text(wording.setting(stage)),
        Text(f"{stage.candidates_after:,}"),
        Text(count, "red" if gone else ""),
        Text(wording.percent(stage.removed_mass) if gone else "", "red"),
        Text(_happened(stage)),
        Text(stage.rule, "dim"),
    ]


def _happened(stage: Stage) -> str:
    shown = [removed.token.shown for removed in stage.examples[:3]]
    if not shown or stage.kind == "input":
        return stage.note
    more = ", …" if stage.removed_count > len(shown) else ""
    return f"{stage.note}; out: {', '.join(shown)}{more}"


# --- tokens ---------------------------------------------------------------------------------------------------------


def _token_table(e: Explanation) -> Table:
    table = _table(
        ("rank", "right"), ("id", "right"), ("token", "left"), ("logit", "right"), ("model", "right"), ("", "left")
    )
    for i in range(1, len(e.stages)):
        table.add_column(str(i), justify="center", no_wrap=True)
    table.add_column("drawn from", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    widest = max((t.model_probability for t in e.tokens if t.model_probability >= 0), default=0.0)
    likeliest = max((t.probability for t in e.tokens if t.probability >= 0), default=0.0)
    for trace in e.tokens:
        table.add_row(*_token_cells(trace, widest, likeliest), style=_DRAWN if trace.drawn else "")
    return table


def _token_cells(trace: TokenTrace, widest: float, likeliest: float) -> list[RenderableType]:
    last = trace.steps[-1]
    logit = wording.logit(trace.logit)
    if last.logit_after != trace.logit and last.logit_after == last.logit_after:
        logit = f"{logit} → {wording.logit(last.logit_after)}"
    return [
        Text(str(trace.rank or "-"), "dim"),
        Text(str(trace.token.token_id), "dim"),
        Text("" if trace.token.text is None else trace.token.shown),
        Text(logit),
        Text(wording.percent(trace.model_probability)),
        Text(_bar(trace.model_probability, widest), "blue"),
        *_marks(trace),
        Text(wording.percent(trace.probability) if trace.probability else ""),
        Text(_bar(trace.probability, likeliest) + (" ◀" if trace.drawn else ""), "green"),
    ]


def _marks(trace: TokenTrace) -> list[Text]:
    """A mark per stage: still in, taken out here, or nothing any more."""
    inside = trace.steps[0].kept
    marks = []
    for step in trace.steps[1:]:
        marks.append(Text("●", "green") if step.kept else Text("✗", "bold red") if inside else Text(""))
        inside = step.kept
    return marks


def _bar(p: float, full: float) -> str:
    if not p > 0 or not full > 0:
        return ""
    eighths = max(1, round(p / full * _BAR * 8))
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


# --- throws ---------------------------------------------------------------------------------------------------------


def _throw(throw: Throw, title: str, width: int) -> RenderableType:
    lines: list[RenderableType] = [
        Text.assemble((f"{title}: ", "bold"), f"W = {throw.total:,}  U = {wording.uniform(throw)}"),
        Text(f"R = floor(U·W / 2^64) = {throw.target:,}"),
        _strip(throw, width),
        _intervals(throw),
    ]
    return Padding(Group(*lines), (1, 2, 0, 2))


def _strip(throw: Throw, width: int) -> Text:
    """[0, W) drawn to scale in token-id order: the owner's interval and the place of R in it."""
    start, end = (throw.hit.start * width // throw.total, -(-throw.hit.end * width // throw.total))
    end = min(max(end, start + 1), width)
    at = min(max(throw.target * width // throw.total, start), end - 1)
    strip = Text("░" * width, "dim")
    strip.stylize("not dim green", start, end)
    plain = "░" * start + "█" * (end - start) + "░" * (width - end)
    strip.plain = plain
    return Text.assemble(strip, "\n", " " * at, ("▲ R", _DRAWN))


def _intervals(throw: Throw) -> Table:
    table = _table(("id", "right"), ("token", "left"), ("from", "right"), ("to", "right"), ("share", "right"))
    for interval in throw.neighbours:
        mine = interval == throw.hit
        table.add_row(
            Text(str(interval.token.token_id)),
            Text("" if interval.token.text is None else interval.token.shown),
            Text(f"{interval.start:,}"),
            Text(f"{interval.end:,}"),
            Text(wording.percent(interval.weight / throw.total)),
            Text("◀ R" if mine else ""),
            style=(_DRAWN if throw.accepted else "bold red") if mine else "",
        )
    return table
