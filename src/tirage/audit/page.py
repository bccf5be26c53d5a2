"""A report as one HTML page: a table, and for each promise what was drawn and the stake against it, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from string import Template

from tirage.audit.finding import Finding, TokenShare
from tirage.audit.report import AuditReport

_COLORS = {"obeyed": "#1a7f37", "not obeyed": "#cf222e", "not tested": "#9a6700"}
_BAR, _WIDTH, _LABEL = 22, 460, 110
_HEIGHT = 150

_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Audit of $url</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1f2328 }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; padding: .3rem .6rem; vertical-align: top;
border-bottom: 1px solid #d0d7de; overflow-wrap: anywhere } section { margin-top: 2rem } svg { max-width: 100% }
figure { margin: .5rem 0 } figcaption { color: #59636e } text { font: 12px system-ui, sans-serif; fill: #1f2328 }
</style></head><body>
<h1>Audit of $url</h1>
<p>Dialect $dialect, model $model. $summary</p>
<ul>$notes</ul>
<table><thead><tr><th>promise</th><th>verdict</th><th>p</th><th>what was seen</th></tr></thead>
<tbody>$rows</tbody></table>
$sections
</body></html>
""")


def audit_page(report: AuditReport) -> str:
    """The page, with nothing that a browser would fetch; texts of the server are escaped."""
    return _PAGE.substitute(
        url=escape(report.url),
        dialect=escape(report.dialect),
        model=escape(report.model or "without a name"),
        summary=escape(report.summary()),
        notes="".join(f"<li>{escape(each)}</li>" for each in report.notes),
        rows="".join(map(_row, report.findings)),
        sections="".join(_section(each, report) for each in report.findings if each.path),
    )


def _row(finding: Finding) -> str:
    p_value = "" if finding.p_value is None else f"{finding.p_value:.2g}"
    verdict = f'<td style="color: {_COLORS[finding.verdict]}">{finding.verdict}</td>'
    return f"<tr><td>{escape(finding.name)}</td>{verdict}<td>{p_value}</td><td>{escape(finding.detail)}</td></tr>"


def _section(finding: Finding, report: AuditReport) -> str:
    bars = bars_svg(finding.shares) if finding.shares else ""
    drawn = "<figcaption>The share of each token among the draws (bar), and what is promised (line).</figcaption>"
    return (
        f"<section><h2>{escape(finding.name)}</h2><p>{escape(finding.detail)}</p>"
        + (f"<figure>{bars}{drawn}</figure>" if bars else "")
        + f"<figure>{path_svg(finding.path, limit=report.stake)}<figcaption>The stake against the promise after each "
        f"outcome, as a power of ten; above the dashed line the promise is broken.</figcaption></figure></section>"
    )


def bars_svg(shares: Sequence[TokenShare]) -> str:
    """Bars of drawn shares, with a line from the least to the largest promised one."""
    most = max([each.drawn for each in shares] + [each.high for each in shares] + [0.01])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LABEL + _WIDTH + 60}" height="{_BAR * len(shares) + 6}" '
        'role="img" aria-label="drawn and promised shares">'
    ]
    for row, each in enumerate(shares):
        top = row * _BAR + 3
        left, right = (_LABEL + _WIDTH * value / most for value in (each.low, each.high))
        label = escape(_shown(each.token))
        parts += [
            f'<text x="{_LABEL - 8}" y="{top + 14}" text-anchor="end">{label}</text>',
            f'<rect x="{_LABEL}" y="{top}" width="{_WIDTH * each.drawn / most:.1f}" height="{_BAR - 6}" '
            'fill="#8ab4f8"/>',
            f'<line x1="{left:.1f}" x2="{max(right, left + 2):.1f}" y1="{top + 8}" y2="{top + 8}" stroke="#1f2328" '
            'stroke-width="4"/>',
            f'<text x="{_LABEL + _WIDTH + 8}" y="{top + 14}">{each.drawn:.3f}</text>',
        ]
    return "".join([*parts, "</svg>"])


def path_svg(path: Sequence[float], *, limit: float) -> str:
    """The line of a stake, in powers of ten, with the `limit` that breaks the promise."""
    low, high = min([*path, -1.0]), max([*path, limit * 1.1])
    low = max(low, high - 40.0)

    def at(value: float) -> float:
        return 8 + (_HEIGHT - 16) * (high - max(value, low)) / (high - low)

    step = _WIDTH / max(len(path), 1)
    points = " ".join(f"{_LABEL + step * (i + 1):.1f},{at(value):.1f}" for i, value in enumerate(path))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LABEL + _WIDTH + 60}" height="{_HEIGHT}" role="img" '
        f'aria-label="stake against the promise"><line x1="{_LABEL}" x2="{_LABEL + _WIDTH}" y1="{at(limit):.1f}" '
        f'y2="{at(limit):.1f}" stroke="#cf222e" stroke-dasharray="5 4"/>'
        f'<line x1="{_LABEL}" x2="{_LABEL + _WIDTH}" y1="{at(0):.1f}" y2="{at(0):.1f}" stroke="#d0d7de"/>'
        f'<text x="{_LABEL - 8}" y="{at(limit) + 4:.1f}" text-anchor="end">1e{math.ceil(limit * 10) / 10:g}</text>'
        f'<text x="{_LABEL - 8}" y="{at(0) + 4:.1f}" text-anchor="end">1</text>'
        f'<polyline points="{points}" fill="none" stroke="#0969da" stroke-width="2"/></svg>'
    )


def _shown(text: str) -> str:
    """A token's text with its spaces visible, without control characters, and not too long."""
    marked = text.replace(" ", "␣")
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in marked)[:14]
