"""An explanation for the terminal, with rich, and as plain text."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tirage.tracing import wording
from tirage.tracing.records import ExplainedDraw, Stage, Token, TokenTrace, UniformDraw

_PLAIN_WIDTH = 120
_WIDE = 100
_BAR = 12
_EIGHTHS = " ▏▎▍▌▋▊▉"
_KINDS = {"input": "dim", "mask": "magenta", "edit": "yellow", "filter": "cyan"}
_DRAWN = "bold green"


def as_text(e: ExplainedDraw) -> str:
    """The whole explanation without colours or control characters, 120 columns wide."""
    out = StringIO()
    console = Console(file=out, width=_PLAIN_WIDTH, color_system=None, force_terminal=False, legacy_windows=False)
    console.print(Group(*render(e, _PLAIN_WIDTH)))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def render(e: ExplainedDraw, width: int) -> Iterator[RenderableType]:
    """Headline, stages, tokens and throws, as rich renderables."""
    yield _header(e)
    yield _stage_table(e, wide=width >= _WIDE)
    if e.tokens:
        yield _token_table(e, wide=width >= _WIDE)
    for i, throw in enumerate(e.throws):
        if not throw.greedy:
            yield _throw(throw, wording.throw_title(throw, i == 0), min(width, _PLAIN_WIDTH) - 4)


def _header(e: ExplainedDraw) -> RenderableType:
    style = _DRAWN if e.token is not None else "bold red"
    facts = Text("  ·  ").join(Text.assemble((f"{key} ", "dim"), value) for key, value in wording.circumstances(e))
    lines = [Text(e.reason), facts]
    if e.coin is not None:
        lines.append(Text(wording.coin_line(e), "dim"))
    return Panel(Group(*lines), title=Text(wording.headline(e), style), title_align="left", border_style="dim")


def _name_columns(named: bool) -> list[tuple[str, str]]:
    """Columns that identify a token: its id, and its text when there are texts."""
    return [("id", "right"), ("token", "left")] if named else [("id", "right")]


def _name_cells(token: Token, named: bool) -> list[Text]:
    text = "" if token.text is None else token.shown
    return [Text(str(token.token_id)), Text(text)] if named else [Text(str(token.token_id))]


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim", pad_edge=True)
    for title, justify in columns:
        table.add_column(title, justify=justify, no_wrap=title != "what happened")  # pyright: ignore[reportArgumentType]
    return table


# --- stages ---------------------------------------------------------------------------------------------------------


_STAGE_COLUMNS = (
    ("", "right"),
    ("stage", "left"),
    ("left", "right"),
    ("removed", "right"),
    ("mass", "right"),
    ("what happened", "left"),
    ("setting", "left"),
    ("rule", "left"),
)
_NARROW_STAGE_COLUMNS = 6


def _stage_table(e: ExplainedDraw, *, wide: bool) -> Table:
    columns = _STAGE_COLUMNS if wide else _STAGE_COLUMNS[:_NARROW_STAGE_COLUMNS]
    table = _table(*columns)
    for i, stage in enumerate(e.stages):
        table.add_row(*_stage_cells(i, stage)[: len(columns)], style="" if stage.reached else "dim")
    return table


def _stage_cells(i: int, stage: Stage) -> list[RenderableType]:
    gone, more = stage.removed_count, stage.added_count
    count = f"-{gone:,}" if gone else f"+{more:,}" if more else ""
    return [
        Text(str(i) if i else "", "dim"),
        Text(stage.label, _KINDS[stage.kind]),
        Text(f"{stage.candidates_after:,}"),
        Text(count, "red" if gone else ""),
        Text(wording.percent(stage.removed_mass) if gone and stage.kind != "input" else "", "red"),
        Text(wording.happened(stage)),
        Text(wording.setting(stage)),
        Text(stage.rule, "dim"),
    ]


# --- tokens ---------------------------------------------------------------------------------------------------------


def _token_table(e: ExplainedDraw, *, wide: bool) -> Table:
    named = any(trace.token.text is not None for trace in e.tokens)
    table = _table(("rank", "right"), *_name_columns(named), ("logit", "right"), ("model", "right"), ("", "left"))
    for title in [str(i) for i in range(1, len(e.stages))] if wide else ["out by"]:
        table.add_column(title, justify="center" if wide else "left", no_wrap=True)
    table.add_column(wording.law_title(e), justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    bar = _BAR if wide else 0
    most = max((t.model_probability for t in e.tokens if t.model_probability > 0), default=1.0)
    likeliest = max((t.probability for t in e.tokens if t.probability > 0), default=1.0)
    for trace in e.tokens:
        left, right = _token_cells(trace, most, bar, named), _law_cells(trace, likeliest, bar)
        fate = _marks(trace) if wide else [Text(trace.removed_by or "", "red")]
        table.add_row(*left, *fate, *right, style=_DRAWN if trace.drawn else "")
    return table


def _token_cells(trace: TokenTrace, most: float, bar: int, named: bool) -> list[RenderableType]:
    return [
        Text(str(trace.rank or "-"), "dim"),
        *_name_cells(trace.token, named),
        Text(wording.logits_of(trace)),
        Text(wording.percent(trace.model_probability)),
        Text(_bar(trace.model_probability / most, bar), "blue"),
    ]


def _law_cells(trace: TokenTrace, most: float, bar: int) -> list[RenderableType]:
    mark = " ◀" if trace.drawn else ""
    return [
        Text(wording.percent(trace.probability) if trace.probability else ""),
        Text(_bar(trace.probability / most, bar) + mark, "green"),
    ]


def _marks(trace: TokenTrace) -> list[Text]:
    """A mark per stage: still in, taken out here, or nothing any more."""
    inside = trace.steps[0].kept
    marks = []
    for step in trace.steps[1:]:
        marks.append(Text("●", "green") if step.kept else Text("✗", "bold red") if inside else Text(""))
        inside = step.kept
    return marks


def _bar(part: float, width: int) -> str:
    """Blocks for a part of 1, in eighths of a character; at least one eighth for what is not 0."""
    if not part > 0 or not width:
        return ""
    eighths = max(1, round(part * width * 8))
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


# --- throws ---------------------------------------------------------------------------------------------------------


def _throw(throw: UniformDraw, title: str, width: int) -> RenderableType:
    lines: list[RenderableType] = [
        Text.assemble((f"{title}: ", "bold"), f"W = {throw.total:,}  U = {wording.uniform(throw)}"),
        Text(f"R = floor(U·W / 2^64) = {throw.target:,}"),
        _strip(throw, width),
        _intervals(throw),
    ]
    return Padding(Group(*lines), (1, 2, 0, 2))


def _strip(throw: UniformDraw, width: int) -> Text:
    """[0, W) drawn to scale in token-id order: the owner's interval and the place of R in it."""
    start = throw.hit.start * width // throw.total
    end = max(-(-throw.hit.end * width // throw.total), start + 1)
    at = throw.target * width // throw.total
    strip = Text.assemble(("░" * start, "dim"), ("█" * (end - start), "green"), ("░" * (width - end), "dim"))
    return Text.assemble(strip, "\n", " " * at, ("▲ R", _DRAWN))


def _intervals(throw: UniformDraw) -> Table:
    named = any(interval.token.text is not None for interval in throw.neighbours)
    table = _table(*_name_columns(named), ("from", "right"), ("to", "right"), ("share", "right"))
    for interval in throw.neighbours:
        mine = interval == throw.hit
        table.add_row(
            *_name_cells(interval.token, named),
            Text(f"{interval.start:,}"),
            Text(f"{interval.end:,}"),
            Text(wording.percent(interval.weight / throw.total)),
            Text("◀ R" if mine else ""),
            style=(_DRAWN if throw.accepted else "bold red") if mine else "",
        )
    return table
