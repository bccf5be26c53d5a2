"""Places in a schema, as paths and JSON pointers, and the errors that name them."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, NoReturn

from tirage.errors import GrammarError

Path = tuple[str | int, ...]


def fail(path: Path, rule: str) -> NoReturn:
    """Raises GrammarError with the place in the schema."""
    raise refusal(path, rule)


def refusal(path: Path, rule: str) -> GrammarError:
    """The error for what stands at a place in the schema."""
    place = shown(path)
    return GrammarError(f"schema at {place} {rule}", place=place)


def pointer(path: Path) -> str:
    """A path as a JSON pointer."""
    return "#" + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def shown(path: Path) -> str:
    """A path as a JSON pointer, shortened for messages."""
    text = pointer(path)
    return text if len(text) <= 200 else text[:197] + "..."


def show(value: Any) -> str:
    """A value as JSON text, shortened for messages."""
    text = str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
