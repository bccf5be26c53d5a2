"""What a request may say about custom processors: a reference to a name that the operator registered.

Nothing is unpacked or run here. A reference is plain text, or SGLang's serialised form read as a list of opcodes.
"""

from __future__ import annotations

import json
import pickletools
from typing import Any

from tirage.dialects.table import DialectError
from tirage.errors import nearest
from tirage.fields.rules import shown
from tirage.processors import find_processor, processor_names

FIELD = "custom_logit_processor"
REGISTER = "register it with tirage.register_processor"
"""What to do about a name that nobody registered, in a program of one's own."""
_MOST_CHARS = 4096
_MODULE = "sglang.srt.sampling.custom_logit_processor"


# SGLang's classes hold the ids of their models' own tokenizers; these are the same tokens of any tokenizer.
_BUDGET = ("thinking_budget", {"think_start_id": "<think>", "think_end_id": "</think>", "newline_id": "\n"})

KNOWN_CLASSES: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    (_MODULE, "DisallowedTokensLogitsProcessor"): ("disallowed_tokens", {}),
    (_MODULE, "Qwen3ThinkingBudgetLogitProcessor"): _BUDGET,
    (_MODULE, "DeepSeekR1ThinkingBudgetLogitProcessor"): _BUDGET,
    (_MODULE, "Glm4MoeThinkingBudgetLogitProcessor"): _BUDGET,
}
"""SGLang's own classes, and the built-in processor with the arguments that does what each does."""


def read_reference(text: Any, *, remedy: str = REGISTER) -> tuple[str, dict[str, Any]]:
    """The registered name that the field refers to, and arguments that belong to the reference.

    Raises DialectError for anything but a plain reference to a known name; `remedy` says how a name becomes one.

    Accepted: a registered name, `{"processor": name}` as `to_str()` writes it, and SGLang's `{"callable": hex}` when
    the bytes are exactly the reference to an importable class of `KNOWN_CLASSES`. They are read, never unpacked.
    """
    if not isinstance(text, str) or not 0 < len(text) <= _MOST_CHARS:
        raise _refusal("a string of 1 to 4096 characters", text)
    if not text.lstrip().startswith("{"):
        return _registered(text, remedy), {}
    found = _object(text)
    if set(found) == {"processor"}:
        return _registered(found["processor"], remedy), {}
    if set(found) == {"callable"}:
        return _class_name(found["callable"], remedy)
    raise _refusal('a name, {"processor": name} or {"callable": reference}', text)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise _refusal("a registered name or a JSON object", text) from None
    if not isinstance(found, dict):
        raise _refusal("a registered name or a JSON object", text)
    return found


def _registered(name: Any, remedy: str) -> str:
    if not isinstance(name, str):
        raise _refusal("a registered name", name)
    if name not in processor_names():
        raise DialectError(
            f"{FIELD} must name a registered processor, got {shown(name)}{nearest(name, processor_names())}; {remedy}",
            FIELD,
        )
    return find_processor(name).name


def _class_name(payload: Any, remedy: str) -> tuple[str, dict[str, Any]]:
    reference = _opcodes(payload)
    known = KNOWN_CLASSES.get(reference) if reference is not None else None
    if known is not None:
        return known
    if reference is not None and reference[1] in processor_names():
        return reference[1], {}
    raise DialectError(
        f"{FIELD} must be a plain reference to a known class, got serialised code, which is never run; "
        f"send the name of a registered processor, or {remedy}",
        FIELD,
    )


_REFERENCE = ["SHORT_BINUNICODE", "SHORT_BINUNICODE", "STACK_GLOBAL", "STOP"]


def _opcodes(payload: Any) -> tuple[str, str] | None:
    """(module, class) of bytes that are a reference to a class and nothing more; they are listed, never run."""
    try:
        data = bytes.fromhex(payload)
        found = list(pickletools.genops(data))
    except Exception:  # whatever a hostile text does to the parser, it is no reference
        return None
    steps = [(op.name, arg) for op, arg, _ in found if op.name not in {"PROTO", "FRAME", "MEMOIZE"}]
    # A frame tells how many bytes follow it; any other number, and bytes after the end, are no plain reference.
    framed = all(arg == len(data) - (place or 0) - 9 for op, arg, place in found if op.name == "FRAME")
    if [name for name, _ in steps] != _REFERENCE or found[-1][2] != len(data) - 1 or not framed:
        return None
    return str(steps[0][1]), str(steps[1][1])


def _refusal(rule: str, value: Any) -> DialectError:
    return DialectError(f"{FIELD} must be {rule}, got {shown(value)}; send the name of a registered processor", FIELD)
