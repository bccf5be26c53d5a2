"""A request of one engine in the words of another: what it says there, what it cannot say, and what it means there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tirage.dialects.law_change import LawChange, law_change
from tirage.dialects.meaning import MeaningChange, meaning_changes
from tirage.dialects.registry import DIALECTS, RegisteredDialect
from tirage.dialects.table import DialectError, FieldMapping
from tirage.errors import ParamsError, nearest
from tirage.fields.rules import shown
from tirage.params import FIELDS, SamplingParams
from tirage.sampling import Pair
from tirage.semantics import FILTERS, Semantics, resolve

CARRIED = frozenset((
    *("model", "messages", "prompt", "text", "input_ids", "stream", "stream_options", "user"),
    *("system", "tools", "tool_choice", "metadata", "user_profile_id", "workspace_id", "betas"),
))
"""Fields of a whole body that are no sampling parameters: what is answered and how, and who asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostField:
    """A parameter that the target cannot say: our name and the source's, its value, what holds there, and why."""

    name: str
    theirs: str
    value: Any
    instead: Any
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        value, instead = _plain(self.name, self.value), _plain(self.name, self.instead)
        return {"name": self.name, "source": self.theirs, "value": value, "instead": instead, "reason": self.reason}

    def __str__(self) -> str:
        return f"{self.theirs} = {shown(self.value)} cannot be said: {self.reason}; there it is {shown(self.instead)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """A converted request.

    `request` are the target's fields, those at its defaults left out. `before` are the parameters as the source means
    them, `after` as the target means `request`. `lost` are parameters that the target cannot say, `changes` what the
    others mean differently there, and `carried` the fields of the body that are no parameters, which stay with you.
    """

    source: str
    target: str
    request: Mapping[str, Any]
    before: SamplingParams
    after: SamplingParams
    lost: tuple[LostField, ...]
    changes: tuple[MeaningChange, ...]
    carried: tuple[str, ...] = ()

    def law_change(self, logits: Any, *, history: Sequence[Pair] | None = None) -> LawChange:
        """How the law of rows of logits [B, V] or [V] changes from the source's request to the target's.

        `history` has prompt and output ids of each row, by default none. Raises ParamsError for logits that
        `tirage.law` refuses. Constraints and words are left out, as they need a tokenizer.
        """
        return law_change(logits, self.before, self.after, history=history)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "source": {"dialect": self.source, "semantics": resolve(self.before.semantics).label},
            "target": {"dialect": self.target, "semantics": resolve(self.after.semantics).label},
            "request": dict(self.request),
            "lost": [
                {
                    "name": each.name,
                    "source": each.theirs,
                    "value": _plain(each.name, each.value),
                    "reason": each.reason,
                }
                for each in self.lost
            ],
            "changes": [{"what": each.what, "before": each.before, "after": each.after} for each in self.changes],
            "carried": list(self.carried),
            "notes": list(self.notes),
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """What the engines themselves do in another way than the presets that stand for them."""
        presets = dict.fromkeys(resolve(each.semantics) for each in (self.before, self.after))
        return tuple(f"{each.label} itself: {one.engine} ({one.rule})" for each in presets for one in each.differences)

    def lines(self) -> list[str]:
        """What a person should know, a line each."""
        before, after = resolve(self.before.semantics).label, resolve(self.after.semantics).label
        changed = [f"  {each}" for each in self.changes] or ["  nothing that these parameters read"]
        return [
            f"from {self.source} ({before}) to {self.target} ({after})",
            *([f"not converted, no sampling parameters: {', '.join(self.carried)}"] if self.carried else []),
            *(["what cannot be said there:", *(f"  {each}" for each in self.lost)] if self.lost else []),
            "what means something else there:",
            *changed,
            *(
                ["what the engines do in another way than these presets:", *(f"  {each}" for each in self.notes)]
                * bool(self.notes)
            ),
        ]


def convert(
    request: Mapping[str, Any],
    source: str,
    target: str,
    *,
    source_semantics: str | None = None,
    target_semantics: str | None = None,
) -> Conversion:
    """The Conversion of a request from one dialect of `DIALECTS` to another.

    `request` are sampling fields, or a whole body: SGLang's `sampling_params` are found in it, and `CARRIED` fields are
    set aside. `source_semantics` and `target_semantics` name other presets than those of the dialects, such as
    "sglang-pytorch". What the source refuses raises DialectError with its name; an unknown dialect, and a preset that
    lacks a stage which the parameters need, raise ParamsError.
    """
    there, here = _registered(source, "source"), _registered(target, "target")
    fields, carried = _sampling_fields(request, source)
    before = _under(there.read(fields), source_semantics)
    plain, lost = here.write(before, lossy=True)
    after = _under(here.read(plain), target_semantics)
    return Conversion(
        source=source,
        target=target,
        request=plain,
        before=before,
        after=after,
        lost=tuple(_loss(name, there, here, before, after) for name in lost),
        changes=meaning_changes(before, after),
        carried=carried,
    )


def _registered(name: str, role: str) -> RegisteredDialect:
    if name not in DIALECTS:
        raise ParamsError(f"{role} must be one of {', '.join(DIALECTS)}, got {name!r}{nearest(str(name), DIALECTS)}")
    return DIALECTS[name]


def _sampling_fields(request: Any, source: str) -> tuple[Any, tuple[str, ...]]:
    """The sampling fields of a request or of a body, and the names of its other fields."""
    if not isinstance(request, Mapping):
        return request, ()
    inner = request.get("sampling_params")
    if source == "sglang" and inner is not None:
        unknown = sorted(set(request) - CARRIED - {"sampling_params"})
        if unknown:
            raise DialectError(
                f"{unknown[0]} must be left out beside sampling_params, got {shown(request[unknown[0]])}; "
                "it is no sampling parameter",
                unknown[0],
            )
        return inner, tuple(name for name in request if name in CARRIED)
    fields = {name: value for name, value in request.items() if name not in CARRIED}
    return fields, tuple(name for name in request if name in CARRIED)


def _under(params: SamplingParams, semantics: str | None) -> SamplingParams:
    return params if semantics is None else params.replace(semantics=semantics)


def _loss(
    name: str, source: RegisteredDialect, target: RegisteredDialect, before: SamplingParams, after: SamplingParams
) -> LostField:
    theirs = next((entry.name for entry in source.dialect.entries.values() if name in entry.ours), name)
    entries = [entry for entry in target.dialect.entries.values() if name in entry.ours]
    return LostField(
        name=name,
        theirs=theirs,
        value=getattr(before, name),
        instead=getattr(after, name),
        reason=_reason(name, target.dialect.name, entries, resolve(after.semantics)),
    )


def _reason(name: str, engine: str, entries: list[FieldMapping], semantics: Semantics) -> str:
    if not entries:
        return f"{engine} has no such field"
    stage = FIELDS[name].stage
    if stage in FILTERS and stage not in semantics.stages:
        return f"{semantics.label} has no stage for it"
    rules = dict.fromkeys(f"{entry.name} is {entry.rule.text}" for entry in entries)
    return f"{engine}'s {', '.join(rules)}"


def _plain(name: str, value: Any) -> Any:
    plain = FIELDS[name].rule.dump(value)
    try:
        json.dumps(plain)
    except (TypeError, ValueError):
        return shown(value)
    return plain
