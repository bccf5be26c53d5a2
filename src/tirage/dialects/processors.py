"""What a request may say about custom processors: a reference to a name that the operator registered.

Nothing is unpacked or run here. A reference is plain text, or SGLang's serialised form read as a list of opcodes.
"""

from __future__ import annotations

import json
import pickletools
from typing import Any

from tirage.dialects.table import DialectError
from tirage.errors import nearest
from tirage.params.rules import shown
from tirage.processors import find_processor, processor_names

FIELD = "custom_logit_processor"
_MOST_CHARS = 4096
_BUILT_IN = "sglang.srt.sampling.custom_logit_processor"
KNOWN_CLASSES = {(_BUILT_IN, "DisallowedTokensLogitsProcessor"): "disallowed_tokens"}
"""Importable classes of SGLang and the built-in processor that does what each does."""


def read_reference(text: Any) -> str:
    """The registered name that the field refers to; DialectError for anything but a plain reference to one.

    Accepted: a registered name, `{"processor": name}` as `to_str()` writes it, and SGLang's `{"callable": hex}` when
    the bytes are exactly the reference to an importable class of `KNOWN_CLASSES`. They are read, never unpacked.
    """
    if not isinstance(text, str) or not 0 < len(text) <= _MOST_CHARS:
        raise _refusal("a string of 1 to 4096 characters", text)
    if not text.lstrip().startswith("{"):
        return _registered(text)
    found = _object(text)
    if set(found) == {"processor"}:
        return _registered(found["processor"])
    if set(found) == {"callable"}:
        return _class_name(found["callable"])
    raise _refusal('a name, {"processor": name} or {"callable": reference}', text)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise _refusal("a registered name or a JSON object", text) from None
    if not isinstance(found, dict):
        raise _refusal("a registered name or a JSON object", text)
    return found


def _registered(name: Any) -> str:
    if not isinstance(name, str):
        raise _refusal("a registered name", name)
    if name not in processor_names():
        raise DialectError(
            f"{FIELD} must name a processor that the operator registered, got {shown(name)}"
            f"{nearest(name, processor_names())}; start the server with --logits-processor NAME=MODULE:OBJECT",
            FIELD,
        )
    return find_processor(name).name


def _class_name(payload: Any) -> str:
    reference = _opcodes(payload)
    name = KNOWN_CLASSES.get(reference) if reference is not None else None
    if name is None:
        raise DialectError(
            f"{FIELD} must be a plain reference to a known class, got serialised code, which is never run; "
            "register the processor with --logits-processor NAME=MODULE:OBJECT and send its name",
            FIELD,
        )
    return _registered(name)


def _opcodes(payload: Any) -> tuple[str, str] | None:
    """(module, class) of bytes that hold exactly these two strings and one global reference; else None."""
    try:
        data = bytes.fromhex(payload)
        found = [(op.name, arg) for op, arg, _ in pickletools.genops(data)]
    except Exception:
        return None
    steps = [(name, arg) for name, arg in found if name not in {"PROTO", "FRAME", "MEMOIZE"}]
    if [name for name, _ in steps] != ["SHORT_BINUNICODE", "SHORT_BINUNICODE", "STACK_GLOBAL", "STOP"]:
        return None
    return (str(steps[0][1]), str(steps[1][1])) if data.endswith(b".") and data.count(b".") else None


def _refusal(rule: str, value: Any) -> DialectError:
    return DialectError(f"{FIELD} must be {rule}, got {shown(value)}; send the name of a registered processor", FIELD)
