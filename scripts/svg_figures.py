"""Small figures as SVG text: laws in panels side by side, and texts as rows of tokens.

Written here rather than by a plotting library: a figure has 2 to 12 kB and the same bytes everywhere, keeps its text as
text, and follows the reader's light or dark colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

WIDTH = 480
_ROW, _HEAD, _LABELS, _MARGIN = 18, 48, 78, 10
_GAP, _PERCENT = 12, 30
_CHARACTER, _TOKEN_ROW = 7.2, 22
_PER_LINE = 62

_STYLE = """
text{font:12px system-ui,sans-serif;fill:#1d1f24}.h{font-weight:600;font-size:13px}
.m{font-family:ui-monospace,"DejaVu Sans Mono",monospace}
.card{fill:#fff;stroke:#e2e0d8}.q{fill:#646a76;font-size:11px}.a{fill:#d5d9e2}.b{fill:#0b7285}.x{fill:#b3212f}
.t0{fill:#dcf0f3}.t1{fill:#eef2f6}.t2{fill:#fbe6d4}
@media(prefers-color-scheme:dark){text{fill:#e6e7ea}.card{fill:#1b1e23;stroke:#30353e}.q{fill:#9aa1ae}.a{fill:#3d4450}
.b{fill:#4fb8ca}.x{fill:#ff8a93}.t0{fill:#143a42}.t1{fill:#262b33}.t2{fill:#4a3113}}
"""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A law beside the one before it: the probabilities of the figure's tokens, in their order; 0 is removed."""

    title: str
    before: Sequence[float]
    after: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Strip:
    """A text as its tokens. `note` stands behind it; tokens from `marked` on stand out, -1 marks none."""

    title: str
    tokens: Sequence[str]
    note: str = ""
    marked: int = -1


def law_figure(title: str, *, labels: Sequence[str], panels: Sequence[Panel], note: str = "") -> str:
    """Panels of bars, one row for each label: the law before in pale, the law after in full, a cross where it is 0."""
    each = (WIDTH - _LABELS - 2 * _MARGIN - _GAP * (len(panels) - 1)) / len(panels)
    longest = max(max(*panel.before, *panel.after) for panel in panels)
    scale = (each - _PERCENT) / longest
    bottom = _HEAD + _ROW * len(labels) + _MARGIN
    parts = [_heading(title), *(_label(label, at) for at, label in enumerate(labels))]
    for number, panel in enumerate(panels):
        left = _LABELS + _MARGIN + number * (each + _GAP)
        parts.append(f'<text class="m" x="{left:.0f}" y="40">{escape(panel.title)}</text>')
        pairs = zip(panel.before, panel.after, strict=True)
        parts += [_bars(left, at, before * scale, after * scale, after) for at, (before, after) in enumerate(pairs)]
    described = f"{title}: {', '.join(panel.title for panel in panels)}"
    return _figure(described, bottom, parts, note=note)


def _heading(title: str) -> str:
    return f'<text class="h" x="{_MARGIN}" y="19">{escape(title)}</text>'


def _note(note: str, y: int) -> str:
    return f'<text class="q" x="{_MARGIN}" y="{y}">{escape(note)}</text>'


def _label(label: str, at: int) -> str:
    return f'<text x="{_LABELS}" y="{_HEAD + _ROW * at + 12}" text-anchor="end">{escape(label)}</text>'


def _bars(left: float, at: int, before: float, after: float, p: float) -> str:
    top = _HEAD + _ROW * at
    bars = f'<rect class="a" x="{left:.0f}" y="{top + 1}" width="{before:.1f}" height="14"/>'
    if not p:
        return bars + f'<text class="x" x="{left + 2:.0f}" y="{top + 12}">×</text>'
    end = left + max(before, after) + 4
    return (
        f'{bars}<rect class="b" x="{left:.0f}" y="{top + 4}" width="{max(after, 0.5):.1f}" height="8"/>'
        f'<text class="q" x="{end:.0f}" y="{top + 12}">{percent(p)}</text>'
    )


def percent(p: float) -> str:
    """A probability in whole percent, as a label has it."""
    return "&lt;1%" if p < 0.005 else f"{p:.0%}"


def strip_figure(title: str, strips: Sequence[Strip], *, note: str = "") -> str:
    """Texts one below the other, each with its title above it and its tokens in alternating shades."""
    parts = [_heading(title)]
    y = 26
    for strip in strips:
        if strip.title:
            parts.append(f'<text class="m" x="{_MARGIN}" y="{y + 12}">{escape(strip.title)}</text>')
            y += 19
        y = _tokens(parts, strip, y) + _TOKEN_ROW + 4
    described = f"{title}: {', '.join(strip.title for strip in strips if strip.title)}"
    return _figure(described, y + 2, parts, note=note)


def _tokens(parts: list[str], strip: Strip, y: int) -> int:
    """Adds the tokens of a strip from height `y` on; returns the height of its last line."""
    used = 0
    for number, token in enumerate(strip.tokens):
        if used and used + len(token) > _PER_LINE:
            used, y = 0, y + _TOKEN_ROW
        shade = "t2" if 0 <= strip.marked <= number else f"t{number % 2}"
        parts.append(_token(token, _MARGIN + used * _CHARACTER, y, shade))
        used += len(token)
    if used + len(strip.note) > _PER_LINE:
        used, y = 0, y + _TOKEN_ROW
    if strip.note:
        parts.append(
            f'<text class="q" x="{_MARGIN + 6 + used * _CHARACTER:.1f}" y="{y + 14}">{escape(strip.note)}</text>'
        )
    return y


def _token(token: str, x: float, y: int, shade: str) -> str:
    width = len(token) * _CHARACTER
    return (
        f'<rect class="{shade}" x="{x:.1f}" y="{y}" width="{width - 1:.1f}" height="18" rx="2"/>'
        f'<text class="m" x="{x:.1f}" y="{y + 13}" textLength="{width:.1f}" xml:space="preserve">{escape(token)}</text>'
    )


def _figure(description: str, height: int, parts: Sequence[str], *, note: str) -> str:
    """The whole file; a note stands below everything else."""
    if note:
        parts, height = [*parts, _note(note, height + 6)], height + 14
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label={quoteattr(description)}>\n<style>{_STYLE}</style>\n'
        f'<rect class="card" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )
