"""The JSON files of a model folder, read as untrusted input."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tirage.errors import ModelError

# Settings are a few KiB; even an index of a thousand shards is smaller than this.
MAX_BYTES = 16 * 2**20
# The deepest published models have a few hundred layers, the widest about as many experts.
MAX_LAYERS = 4096
MAX_LABELS = 1 << 16
_COUNTS = (
    (re.compile(r"(\w+_)?(layers|n_layer|depth|experts)|attention_types"), MAX_LAYERS),
    (re.compile("num_labels"), MAX_LABELS),
)


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; ModelError naming the file if it is missing, too large or no object."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ModelError(f"{path} must be at most {MAX_BYTES} bytes of JSON; is it the right file?")
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object, got {type(value).__name__}")
    return value


def check_layers(config: Any, path: Path) -> None:
    """Raises ModelError for a config that counts more layers, experts or labels, anywhere in it, than can be built."""
    if isinstance(config, dict):
        for name, value in config.items():
            most = next((most for pattern, most in _COUNTS if pattern.fullmatch(str(name))), None)
            if most is not None and (found := largest(value)) > most:
                raise ModelError(f"{path}: {name} must be at most {most}, got {found}; is it the right file?")
            check_layers(value, path)
    elif isinstance(config, list):
        for each in config:
            check_layers(each, path)


def largest(value: Any) -> int | float:
    """The largest number in lists inside each other, or the number itself; 0 without one."""
    if isinstance(value, list):
        return max(map(largest, value), default=0)
    return value if isinstance(value, (int, float)) else 0


def read_optional_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty if there is no such file; ModelError as `read_json_object` raises."""
    return read_json_object(path) if path.exists() else {}
