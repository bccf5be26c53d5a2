"""An explanation as one HTML page: styles inside, no script, nothing from outside, every text escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib.resources import files

from tirage.tracing import wording
from tirage.tracing.records import ExplainedDraw, Interval, Stage, Token, TokenStep, TokenTrace, UniformDraw


def page(e: ExplainedDraw) -> str:
    """The whole page."""
    return document(f"tirage: {wording.headline(e)}", f"{_header(e)}{_stages(e)}{_tokens(e)}{_throws(e)}")


def document(title: str, content: str) -> str:
    """A page with this title, which is escaped here, and this content, which is markup."""
    style = files("tirage.tracing").joinpath("page.css").read_text("utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"{content}</main>\n</body>\n</html>\n"
    )


def table(heads: Iterable[str], rows: Iterable[Iterable[str]], classes: str) -> str:
    """A table whose first column is text and the others numbers; heads are escaped here, cells are markup."""
    shown = [(head, "n" if index else "") for index, head in enumerate(heads)]
    cells = [[_tag("td", cell, "n" if index else "") for index, cell in enumerate(row)] for row in rows]
    return _table(_heads(shown), map(_row, cells), classes)


def token_mark(token_shown: str) -> str:
    """A token's text, escaped, in the form that all pages give it."""
    return _token(token_shown)


def framed(e: ExplainedDraw) -> str:
    """The page inside a frame of its own, for notebooks: its styles stay with it."""
    return (
        f'<iframe srcdoc="{escape(page(e))}" sandbox="" '
        'style="width:100%;height:46em;border:1px solid #8884;border-radius:8px"></iframe>'
    )


def _tag(name: str, content: str, classes: str = "", **attributes: str) -> str:
    """An element around markup that is already safe; attribute values are escaped here."""
    given = {"class": classes, **attributes}
    written = "".join(f' {key}="{escape(value)}"' for key, value in given.items() if value)
    return f"<{name}{written}>{content}</{name}>"


def _row(cells: Iterable[str], classes: str = "") -> str:
    return _tag("tr", "".join(cells), classes) + "\n"


def _cell(text: str, classes: str = "", **attributes: str) -> str:
    return _tag("td", escape(text), classes, **attributes)


def _heads(titles: Iterable[tuple[str, str]]) -> str:
    return _tag("thead", _row(_tag("th", escape(text), classes, scope="col") for text, classes in titles))


def _section(title: str, content: str) -> str:
    return _tag("section", f"<h2>{escape(title)}</h2>\n{content}") + "\n"


def _table(head: str, rows: Iterable[str], classes: str) -> str:
    return _tag("div", _tag("table", f"{head}\n<tbody>\n{''.join(rows)}</tbody>", classes), "scroll")


def _token(token_shown: str) -> str:
    # Isolated, so that a right-to-left token cannot turn its surroundings around.
    return _tag("bdi", escape(token_shown), "token")


def _unnamed(tokens: Iterable[Token]) -> str:
    """The class of a table whose tokens have no texts: its text column is hidden."""
    return "" if any(token.text is not None for token in tokens) else "unnamed"


# --- header ---------------------------------------------------------------------------------------------------------


def _header(e: ExplainedDraw) -> str:
    if e.token is None:
        title = escape(wording.headline(e))
    else:
        chance = _tag("span", escape(wording.percent(e.probability)), "chance")
        title = f"{_token(e.token.shown)} {_tag('span', f'#{e.token_id}', 'id')} {chance}"
    facts = [*wording.circumstances(e), ("logprob", f"{e.logprob:.4f}")]
    listed = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in facts)
    coin = _tag("p", escape(wording.coin_line(e)), "quiet") if e.coin else ""
    heading = _tag("h1", title, "" if e.token else "bad")
    return f"<header>\n{heading}\n<p>{escape(e.reason)}</p>\n{coin}<dl>{listed}</dl>\n</header>\n"


# --- stages ---------------------------------------------------------------------------------------------------------

_STAGE_HEADS = (
    ("", "n"),
    ("stage", ""),
    ("setting", ""),
    ("candidates", "n"),
    ("removed", "n"),
    ("mass removed", ""),
    ("what happened", ""),
    ("rule", ""),
)


def _stages(e: ExplainedDraw) -> str:
    rows = [_stage_row(i, stage) for i, stage in enumerate(e.stages)]
    off = [stage.label for stage in e.all_stages if stage.off]
    note = _tag("p", escape("Off: " + ", ".join(off) + "."), "quiet") if off else ""
    return _section("Stages", _table(_heads(_STAGE_HEADS), rows, "stages") + note)


def _stage_row(i: int, stage: Stage) -> str:
    gone, more = stage.removed_count, stage.added_count
    count = f"−{gone:,}" if gone else f"+{more:,}" if more else ""
    lost = gone and stage.kind != "input"
    options = ", ".join(f"{key}: {value}" for key, value in stage.options.items())
    cells = [
        _cell(str(i) if i else "", "n quiet"),
        _tag("td", _tag("span", escape(stage.label), f"kind {stage.kind}"), title=options),
        _cell(wording.setting(stage), "code"),
        _cell(f"{stage.candidates_after:,}", "n"),
        _cell(count, "n out"),
        _bar(stage.removed_mass, stage.removed_mass, "lost") if lost else _cell(""),
        _tag("td", _happened(stage)),
        _cell(stage.rule, "quiet rule"),
    ]
    return _row(cells, "" if stage.reached else "unreached")


def _happened(stage: Stage) -> str:
    shown = [_token(removed.token.shown) for removed in wording.examples(stage)]
    more = " …" if stage.removed_count > len(shown) else ""
    return escape(stage.note) + (_tag("div", f"out: {' '.join(shown)}{more}", "quiet") if shown else "")


def _bar(p: float, width: float, classes: str) -> str:
    """A cell with a probability and a bar of `width` in [0, 1]."""
    if not p > 0:
        return _cell(wording.percent(p) if p != p else "", "bar")
    shown = _tag("span", escape(wording.percent(p)))
    return _tag("td", _tag("i", "", style=f"width:{max(width, 0.004) * 100:.1f}%") + shown, f"bar {classes}")


# --- tokens ---------------------------------------------------------------------------------------------------------


_LEGEND = "1, 2, … are the stages above: the darker, the more probable after it; ✗ where a token fell out."


def _tokens(e: ExplainedDraw) -> str:
    if not e.tokens:
        return ""
    numbers = [(str(i), "c") for i in range(1, len(e.stages))]
    heads = [("rank", "n"), ("id", "n"), ("token", ""), ("logit", "n"), ("model", ""), *numbers]
    top = max((t.model_probability for t in e.tokens if t.model_probability > 0), default=1.0)
    likeliest = max((t.probability for t in e.tokens if t.probability > 0), default=1.0)
    rows = [_token_row(e, trace, trace.model_probability / top, trace.probability / likeliest) for trace in e.tokens]
    legend = _tag("p", escape(_LEGEND), "quiet")
    return _section(
        "Tokens",
        _table(_heads([*heads, (wording.law_title(e), "")]), rows, f"tokens {_unnamed(t.token for t in e.tokens)}")
        + legend,
    )


def _token_row(e: ExplainedDraw, trace: TokenTrace, model: float, law: float) -> str:
    text = "" if trace.token.text is None else _token(trace.token.shown)
    cells = [
        _cell(str(trace.rank or "–"), "n quiet"),
        _cell(str(trace.token.token_id), "n quiet"),
        _tag("td", text),
        _cell(wording.logits_of(trace), "n"),
        _bar(trace.model_probability, model, "model"),
        *_marks(e.stages[1:], trace),
        _bar(trace.probability, law, "law"),
    ]
    return _row(cells, "drawn" if trace.drawn else "fallen" if trace.removed_by else "")


def _marks(stages: Iterable[Stage], trace: TokenTrace) -> list[str]:
    inside, cells = trace.steps[0].kept, []
    for stage, step in zip(stages, trace.steps[1:], strict=True):
        cells.append(_mark(stage, step, inside))
        inside = step.kept
    return cells


def _mark(stage: Stage, step: TokenStep, inside: bool) -> str:
    if not step.kept:
        return _cell("✗" if inside else "", "c out", title=f"removed by {stage.label}" if inside else "")
    before, after = wording.percent(step.probability_before), wording.percent(step.probability_after)
    said = f"{stage.label}: {before} → {after}, with all above it {wording.percent(step.cumulative)}"
    shade = 0.0 if step.probability_after != step.probability_after else step.probability_after**0.5
    return _cell("", "c in", title=said, style=f"--p:{shade:.3f}")


# --- throws ---------------------------------------------------------------------------------------------------------


def _throws(e: ExplainedDraw) -> str:
    drawn = [(i, throw) for i, throw in enumerate(e.throws) if not throw.greedy]
    return "".join(_section(wording.capital(wording.throw_title(t, i == 0)), _throw(t)) for i, t in drawn)


def _throw(throw: UniformDraw) -> str:
    owner = f"left:{_place(throw.hit.start, throw):.3f}%;width:{_place(throw.hit.weight, throw):.3f}%"
    strip = _tag("i", "", "own" if throw.accepted else "own refused", style=owner)
    strip += _tag("b", "R", style=f"left:{_place(throw.target, throw):.3f}%")
    numbers = (
        ("W", "the integer mass that was left", f"{throw.total:,}"),
        ("U", "64 random bits of seed, step and sample", wording.uniform(throw)),
        ("R", "floor(U × W / 2^64)", f"{throw.target:,}"),
    )
    said = "".join(f"<div><dt>{k}</dt><dd><code>{escape(v)}</code> {escape(what)}</dd></div>" for k, what, v in numbers)
    heads = _heads((("id", "n"), ("token", ""), ("from", "n"), ("to", "n"), ("share", "n")))
    table = _table(
        heads,
        [_interval(interval, throw) for interval in throw.neighbours],
        f"intervals {_unnamed(i.token for i in throw.neighbours)}",
    )
    return f"{_tag('div', strip, 'strip')}\n{_tag('dl', said, 'sums')}\n{table}"


def _place(amount: int, throw: UniformDraw) -> float:
    return 100 * amount / throw.total


def _interval(interval: Interval, throw: UniformDraw) -> str:
    mine = interval == throw.hit
    cells = [
        _cell(str(interval.token.token_id), "n quiet"),
        _tag("td", "" if interval.token.text is None else _token(interval.token.shown)),
        _cell(f"{interval.start:,}", "n"),
        _cell(f"{interval.end:,}", "n"),
        _cell(wording.percent(interval.weight / throw.total), "n"),
    ]
    return _row(cells, ("drawn" if throw.accepted else "refused") if mine else "")
