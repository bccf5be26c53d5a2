"""What the operator adds at start-up: named logits processors and adapters."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import entry_points
from typing import Any

from tirage.dialects import DialectError
from tirage.dialects.sglang import with_processor
from tirage.errors import ParamsError, TirageError
from tirage.params import SamplingParams
from tirage.processors import processor_names, register_processor
from tirage.server.options import Options

_FLAG = "ask the operator to start the server with --logits-processor NAME=MODULE:OBJECT"
GROUP = "tirage.processors"
"""The entry point group whose members, of any installed package, are registered as processors."""


def load_processors(options: Options) -> None:
    """Registers the processors of installed packages and those of --logits-processor, which may replace them.

    Raises TirageError for one that cannot be loaded.
    """
    for point in entry_points(group=GROUP):
        if point.name not in processor_names():
            register(point.name, imported(point.load, point.name, point.value))
    for text in options.logits_processor:
        name, _, place = text.partition("=")
        module, _, attribute = place.partition(":")
        register(name, imported(lambda m=module, a=attribute: find(m, a), name, place))


def find(module: str, attribute: str) -> Any:
    """An attribute of a module, or of an attribute by dots; the working directory is searched for modules too."""
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def imported(load: Any, name: str, place: str) -> Any:
    """What `load` returns, or an instance if that is a class; raises TirageError."""
    try:
        found = load()
        return found() if inspect.isclass(found) else found
    except Exception as error:  # the operator's code may fail in any way
        raise TirageError(
            f"logits processor {name!r} cannot be loaded from {place}: {type(error).__name__}: {error}"
        ) from error


def register(name: str, fn: Any) -> None:
    """Registers a processor with its `arg_names` and its `check` of arguments, if it has them."""
    arg_names, check = getattr(fn, "arg_names", None), getattr(fn, "check", None)
    checked = partial(check_arguments, name, check) if callable(check) else None
    register_processor(name, fn, arg_names=arg_names, replace=True, check=checked)


def check_arguments(name: str, check: Callable[[dict[str, Any]], object], arguments: Mapping[str, Any]) -> None:
    """Raises ParamsError when the processor's own check rejects the arguments of a request."""
    try:
        check(dict(arguments))
    except Exception as error:  # whatever it raises, it rejects them
        reason = f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ParamsError(f"arguments of processor {name!r} must pass its check: {reason}") from error


def read_adapters(options: Options) -> dict[str, str]:
    """Adapter folders by the names that requests use; raises ParamsError for a repeated one."""
    found: dict[str, str] = {}
    for text in options.lora:
        name, _, place = text.partition("=")
        if name in found:
            raise ParamsError(f"--lora must give each name once, got {name!r} twice")
        found[name] = place
    return found


def with_named(
    params: SamplingParams,
    reference: str | None,
    arguments: Mapping[str, Any] | None,
    options: Options,
    where: str = "",
) -> SamplingParams:
    """The parameters with the processor that a request names; raises DialectError where that is not enabled."""
    if reference is not None and not options.enable_custom_logit_processor:
        raise DialectError(
            "custom_logit_processor must be left out, for this server was started without "
            "--enable-custom-logit-processor; ask the operator for it",
            "custom_logit_processor",
        )
    return with_processor(params, reference, arguments, where, remedy=_FLAG)
