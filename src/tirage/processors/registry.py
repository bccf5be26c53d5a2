"""Custom logits processors, by name: what `logits_processors=((name, args),)` refers to.

A request names a processor and gives plain arguments; the code behind the name was registered by whoever
runs the process. Nothing that arrives in a request is ever executed.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tirage.errors import ParamsError, nearest
from tirage.processors.calls import RUN

ProcessorFunction = Callable[[np.ndarray, list[dict[str, Any]]], np.ndarray]


PAST = "__req__"
"""The argument under which a processor with `wants_past` finds the request's tokens; SGLang's name for it."""


@dataclass(frozen=True, slots=True)
class Past:
    """The tokens of a request so far, under SGLang's names for them."""

    origin_input_ids: Sequence[int]
    output_ids: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Processor:
    """A registered function, and what is known of its arguments.

    `arg_names` are those it takes, None for any. `token_args` may be the text of one token, which
    `update_with_tokenizer` replaces by its id. With `wants_past` the arguments hold the request's tokens too, a `Past`
    under `__req__`; with `needs_past` rows whose tokens the caller does not know are refused. `check` raises
    ParamsError for a request's arguments that make no sense.
    """

    name: str
    fn: ProcessorFunction
    arg_names: tuple[str, ...] | None = None
    token_args: tuple[str, ...] = ()
    wants_past: bool = False
    needs_past: bool = False
    check: Callable[[Mapping[str, Any]], None] | None = None

    def spellings(self, args: Mapping[str, Any]) -> dict[str, str]:
        """The arguments given as a token's text, which `update_with_tokenizer` replaces by its id."""
        return {key: args[key] for key in self.token_args if isinstance(args.get(key), str)}

    def takes(self, key: str) -> bool:
        """Whether this processor takes an argument called `key`."""
        return key != PAST and (self.arg_names is None or key in self.arg_names)

    def merge(self, args: Mapping[str, Any], extra_args: Mapping[str, Any] | None) -> dict[str, Any]:
        """The arguments of one row: the processor's own, and the `extra_args` that it declares."""
        shared = {key: value for key, value in (extra_args or {}).items() if self.takes(key)}
        return {**shared, **args}

    def run(
        self, row: np.ndarray, args: Mapping[str, Any], extra_args: Mapping[str, Any] | None, past: Callable[[], Past]
    ) -> Any:
        """What the function returns for a copy of one `row` [V], given to it as [1, V]."""
        given = self.merge(args, extra_args)
        if self.wants_past:
            given[PAST] = past()
        call, run = partial(self.fn, row[None].copy(), [given]), RUN.get()
        return call() if run is None else run(self.name, call)


_registry: dict[str, Processor] = {}
_lock = threading.Lock()


def register_processor(
    name: str,
    fn: ProcessorFunction,
    *,
    arg_names: Iterable[str] | None = None,
    token_args: Iterable[str] = (),
    replace: bool = False,
    check: Callable[[Mapping[str, Any]], None] | None = None,
) -> None:
    """Makes `fn` available to requests as `logits_processors=((name, args),)`.

    `fn(logits, args)` gets float32 logits `[rows, V]` of the rows that named it and one dict of arguments per row; it
    returns logits of the same shape. The logits are a copy that it may change. `token_args` may be the text of one
    token instead of its id; then `SamplingParams.update_with_tokenizer` finds the id. `arg_names` declares the
    arguments it takes: any other key in a request is refused. `check(arguments)` raises ParamsError for arguments that
    make no sense, before anything runs. A function with the attribute `wants_past` finds the request's tokens under
    `__req__`, and rows without a history are refused unless its `needs_past` is False. A class, and a function that
    cannot be called with two arguments, raise ParamsError: register an instance. A name that is taken raises
    ParamsError unless `replace=True`. Safe to call from several threads.
    """
    wants_past = bool(getattr(fn, "wants_past", False))
    processor = Processor(
        name=_name(name),
        fn=_function(name, fn),
        arg_names=_arg_names(name, arg_names),
        token_args=tuple(token_args),
        wants_past=wants_past,
        needs_past=wants_past and bool(getattr(fn, "needs_past", True)),
        check=check,
    )
    with _lock:
        if name in _registry and not replace:
            raise ParamsError(f"processor name must be free, got {name!r}; use replace=True to replace it")
        _registry[name] = processor


def unregister_processor(name: str) -> None:
    """Removes a processor; requests that name it are refused from now on. ParamsError for a name that is not there."""
    with _lock:
        find_processor(name)
        del _registry[name]


def find_processor(name: str) -> Processor:
    """The processor registered under `name`; ParamsError with the nearest name when there is none."""
    processor = _registry.get(name)
    if processor is None:
        raise ParamsError(
            f"processor must be a registered name, got {name!r}{nearest(name, _registry)}; "
            "register it with tirage.register_processor"
        )
    return processor


def processor_names() -> tuple[str, ...]:
    """The registered names, sorted."""
    return tuple(sorted(_registry))


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ParamsError(f"processor name must be a non-empty string, got {name!r}")
    return name


def _function(name: str, fn: object) -> Any:
    rule = f"processor {name!r} must be a function of (logits, args)"
    if inspect.isclass(fn):
        raise ParamsError(f"{rule}, got the class {fn.__name__}; register an instance, {fn.__name__}()")
    if not callable(fn):
        raise ParamsError(f"{rule}, got {type(fn).__name__}")
    if (signature := _signature(fn)) is not None:
        try:
            signature.bind(None, None)
        except TypeError as error:
            raise ParamsError(f"{rule}, got one of {signature} ({error}); take both by position") from None
    return fn


def _signature(fn: Any) -> inspect.Signature | None:
    """The signature of a function; None for one written in C that has none."""
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        return None


def _arg_names(name: str, arg_names: Iterable[str] | None) -> tuple[str, ...] | None:
    if arg_names is None:
        return None
    declared = () if isinstance(arg_names, str) else tuple(arg_names)
    if isinstance(arg_names, str) or not all(isinstance(key, str) and key for key in declared):
        raise ParamsError(f"arg_names of processor {name!r} must be a list of names, got {arg_names!r}")
    return declared
