"""What the operator adds at the start: logits processors by name, and adapters by name."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from importlib.metadata import entry_points
from typing import Any

from tirage.errors import ParamsError, TirageError
from tirage.processors import processor_names, register_processor
from tirage.server.options import Options

GROUP = "tirage.processors"
"""Entry points of this group, of any installed package, are processors under their own names."""

MOST_FAILURES = 3
"""A processor that has failed so often is refused to new requests."""


def load_processors(options: Options) -> None:
    """Registers the processors of installed packages and those of --logits-processor, which may replace them.

    TirageError names the one that cannot be had.
    """
    for point in entry_points(group=GROUP):
        if point.name not in processor_names():
            register(point.name, imported(point.load, point.name, point.value))
    for text in options.logits_processor:
        name, place = pair(text, "--logits-processor", "NAME=MODULE:OBJECT")
        module, colon, attribute = place.partition(":")
        if not (module and colon and attribute):
            raise ParamsError(f"--logits-processor must be NAME=MODULE:OBJECT, got {text!r}")
        register(name, imported(lambda m=module, a=attribute: find(m, a), name, place))


def find(module: str, attribute: str) -> Any:
    """An attribute of a module, dots in its name included; modules in the working folder are found too."""
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def imported(load: Any, name: str, place: str) -> Any:
    """What `load` returns; a class is called for its instance."""
    try:
        found = load()
        return found() if inspect.isclass(found) else found
    except Exception as error:  # code of the operator's may fail in any way
        raise TirageError(
            f"logits processor {name!r} cannot be loaded from {place}: {type(error).__name__}: {error}"
        ) from error


def register(name: str, fn: Any) -> None:
    """Makes a processor known, with the argument names that it declares in `arg_names`, if it does.

    It is refused to new requests once it has failed `MOST_FAILURES` times.
    """
    arg_names = getattr(fn, "arg_names", None)
    register_processor(name, fn, arg_names=arg_names, replace=True, disable_after=MOST_FAILURES)


def read_adapters(options: Options) -> dict[str, str]:
    """Adapter folders by the names that requests give."""
    found: dict[str, str] = {}
    for text in options.lora:
        name, place = pair(text, "--lora", "NAME=PATH")
        if name in found:
            raise ParamsError(f"--lora must give each name once, got {name!r} twice")
        found[name] = place
    return found


def pair(text: str, flag: str, shape: str) -> tuple[str, str]:
    """The two sides of `NAME=...`; ParamsError without a name or a value."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ParamsError(f"{flag} must be {shape}, got {text!r}")
    return name, value
