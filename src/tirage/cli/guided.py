"""The command-line options of guided decoding: one for every field of GuidedDecodingParams."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tirage.cli.derived import as_option, field_option, is_none
from tirage.cli.given import read_file
from tirage.errors import ParamsError
from tirage.fields.record import FieldSpec, specs
from tirage.params import GuidedDecodingParams

FILES = {"json": "{", "grammar": ":", "structural_tag": "{"}
"""Fields whose value may be in a file, each with a character that every valid value contains."""
NAMES = {"json": "json_schema", "backend": "guided_backend"}
"""Fields whose options have other names: `--json` asks for JSON output, and `--backend` is the model's."""
_SPECS = specs(GuidedDecodingParams)
OPTIONS: Mapping[str, FieldSpec] = {
    NAMES.get(name, name): spec for name, spec in _SPECS.items() if name != "backend_was_auto"
}
GROUP = "Guided decoding"
"""The group of the help that these options are in."""


def options() -> list[inspect.Parameter]:
    """The parameters of a command for the options; their values are for `parse_guided`."""
    return [
        field_option(name, spec, metavar="FILE|TEXT" if spec.name in FILES else None, panel=GROUP)
        for name, spec in OPTIONS.items()
    ]


def parse_guided(given: Mapping[str, Any]) -> GuidedDecodingParams | None:
    """The constraint that the options describe; None without any. Raises ParamsError for a bad one."""
    asked = {name: value for name, value in given.items() if value not in (None, [], False)}
    found = {OPTIONS[name].name: value for name, value in asked.items() if not is_none(OPTIONS[name], value)}
    if not found:
        return None
    for name in FILES.keys() & found.keys():
        found[name] = content(name, found[name])
    for name, value in found.items():
        found[name] = as_option(_SPECS[name]).check(value)
    return GuidedDecodingParams(**found)


def content(name: str, value: str) -> str:
    """The value itself, or the content of the file that it names. Raises ParamsError for a file that cannot be read."""
    option = NAMES.get(name, name)
    try:
        if FILES[name] in value and not Path(value).is_file():
            return value
        return read_file(Path(value))
    except ParamsError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ParamsError(f"{option} must be text or the name of a file, got {value[:60]!r}: {reason}") from None
