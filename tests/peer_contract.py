"""What becomes of a field of another engine's requests: the contract that `tests/peers/fields/*.csv` records.

`standing` reads it from the tables that the routes and the dialects run on, so that the files cannot say otherwise.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from field_effects import CHAT, COMPLETIONS, EFFECTS, GENERATE, MESSAGES, RESPONSES, SAMPLING, Effect

from tirage.dialects import DIALECTS as REGISTERED
from tirage.dialects.gemma import NOTES as GEMMA_NOTES
from tirage.dialects.hf import NOTES
from tirage.dialects.table import Dialect
from tirage.dialects.unsupported import SGLANG_GENERATE, Unsupported
from tirage.server.routes import messages_request, openai_request, responses_request, sglang_request
from tirage.server.routes.fields import NOTED, Only

FOLDER = Path(__file__).parent / "peers" / "fields"
COLUMNS = ("kind", "field", "default", "place", "status", "inert", "reason", "effect")
STATUSES = ("enforced", "noted", "inert", "refused")

DIALECTS = {
    f"from_{name}": (name, REGISTERED[name].dialect)
    for name in ("vllm", "hf", "llamacpp", "mlx", "easydel", "gemma", "mindie")
}
NOTED_FIELDS = {"from_hf": NOTES, "from_gemma": GEMMA_NOTES}
"""What belongs to an object of theirs besides parameters of generation."""
ROUTES = {
    CHAT: openai_request.CHAT,
    COMPLETIONS: openai_request.COMPLETIONS,
    MESSAGES: messages_request.MESSAGES,
    RESPONSES: responses_request.RESPONSES,
}


class UnknownFieldError(LookupError):
    """A field that its place does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What becomes of a field: `enforced` has the test of its effect, `noted` tells who asks and changes nothing.

    `inert` is taken at these values (JSON) and at null, `refused` at null alone; both give the reason otherwise.
    """

    status: str
    inert: str = ""
    reason: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of a file: a field of one class or function of the peer, its default there, and its standing here."""

    peer: str
    kind: str
    field: str
    default: str
    place: str
    standing: Standing


def standing(place: str, name: str) -> Standing:
    """What becomes of a field at a place; UnknownFieldError where nothing knows it."""
    if place in DIALECTS:
        return _of_dialect(place, name)
    found = _special(place).get(name)
    if isinstance(found, Unsupported):
        return _limited(found)
    if found == NOTED:
        return Standing(status="noted")
    if found is None:
        raise UnknownFieldError(f"{place} does not know {name}")
    effect = EFFECTS[place][name]
    own = f"test_field_effects.py::test_a_field_changes_the_answer_whole_and_streamed[{place}-{name}]"
    return Standing(status="enforced", effect=own if isinstance(effect, Effect) else effect.test)


def _special(place: str) -> dict[str, Unsupported | str]:
    """Every field of a route with what limits it, or what it means."""
    if place == GENERATE:
        return {**SGLANG_GENERATE, **{name: field.meaning for name, field in sglang_request.FIELDS.items()}}
    if place == SAMPLING:
        return {**_known(sglang_request.GENERATE), **dict.fromkeys(sglang_request.SAMPLING_FIELDS, "")}
    route = ROUTES[place]
    own = {n: f.rule.unsupported if isinstance(f.rule, Only) else f.meaning for n, f in route.fields.items()}
    return {**_known(route.fastdeploy), **_known(route.openai), **own}


def _known(dialect: Dialect) -> dict[str, Unsupported | str]:
    return {**dialect.unsupported, **dict.fromkeys(dialect.entries, "")}


def _of_dialect(place: str, name: str) -> Standing:
    case, dialect = DIALECTS[place]
    if name in NOTED_FIELDS.get(place, ()):
        return Standing(status="noted")
    if name in dialect.unsupported:
        return _limited(dialect.unsupported[name])
    if name not in dialect.entries:
        raise UnknownFieldError(f"{place} does not know {name}")
    effect = f"test_dialects.py::test_every_field_changes_something_or_is_refused[{case}-{name}]"
    return Standing(status="enforced", effect=effect)


def _limited(limit: Unsupported) -> Standing:
    inert = json.dumps(list(limit.inert)) if limit.inert else ""
    return Standing(status="inert" if inert else "refused", inert=inert, reason=limit.reason)


def known_fields(place: str) -> Mapping[str, Unsupported | str]:
    """Every field of a route: what limits it, or else what it means."""
    return _special(place)


def read_rows() -> list[Row]:
    """All lines of all files."""
    return [row for path in sorted(FOLDER.glob("*.csv")) for row in read_file(path)]


def read_file(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as lines:
        return [
            Row(
                peer=path.stem,
                kind=line["kind"],
                field=line["field"],
                default=line["default"],
                place=line["place"],
                standing=Standing(**{name: line[name] for name in ("status", "inert", "reason", "effect")}),
            )
            for line in csv.DictReader(lines)
        ]


def write_file(path: Path, rows: list[Row]) -> None:
    """One file, its lines in the order of the peer's source."""
    with path.open("w", encoding="utf-8", newline="") as lines:
        table = csv.writer(lines, lineterminator="\n")
        table.writerow(COLUMNS)
        for row in rows:
            of = row.standing
            table.writerow([row.kind, row.field, row.default, row.place, of.status, of.inert, of.reason, of.effect])
