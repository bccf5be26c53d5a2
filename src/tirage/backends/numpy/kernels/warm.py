"""Compiling the kernels once per process, in the background, while the plain path serves."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from typing import Any

_TRIES, _TRY_S = 200, 0.05
"""How often, and for how long each time, a compilation is asked to stop when the process ends."""


class _Warmth:
    """The compiled entries of this process, and the thread that makes them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.done = threading.Event()
        self.thread: threading.Thread | None = None
        self.entry: Any = None
        self.single: Any = None
        self.law: Any = None
        self.held: tuple[Any, ...] | None = None
        self.dispatcher: Any = None

    def compile(self) -> None:
        try:
            from tirage.backends.numpy.kernels import held
            from tirage.backends.numpy.kernels.laws import law_entry, law_signature
            from tirage.backends.numpy.kernels.rows import compiled, draw_entry, draw_signature
            from tirage.backends.numpy.kernels.single import single_entry, single_signature

            self.entry = self.entry or compiled(draw_entry, draw_signature(), self.begin)
            self.single = self.single or compiled(single_entry, single_signature())
            self.law = self.law or compiled(law_entry, law_signature())
            self.held = (
                compiled(held.gather_entry, held.gather_signature()),
                compiled(held.mass_entry, held.mass_signature()),
                compiled(held.shares_entry, held.shares_signature()),
                compiled(held.marked_entry, held.marked_signature()),
                compiled(held.marked_mass_entry, held.marked_mass_signature()),
            )
        except Exception:
            # Numba has imported it; the first draw does without.
            import logging

            logging.getLogger("tirage").exception(
                "the Numba kernels could not be compiled; plain NumPy goes on serving"
            )
        finally:
            self.done.set()

    def begin(self, dispatcher: Any) -> None:
        self.dispatcher = dispatcher


_warmth = _Warmth()


def start() -> None:
    """Begin compiling or loading the kernels in a daemon thread; at once, and only once per process."""
    with _warmth.lock:
        if _warmth.thread is None and _warmth.held is None:
            _warmth.thread = threading.Thread(target=_warmth.compile, name="tirage-compile", daemon=True)
            _warmth.thread.start()


@atexit.register
def _stop() -> None:
    """Ends the compiling thread: in native code while the interpreter goes away, it would abort the process."""
    thread, tell = _warmth.thread, sys.unraisablehook
    # A callback of LLVM may be where the thread is told to stop.
    sys.unraisablehook = lambda seen: None if seen.exc_type is SystemExit else tell(seen)
    for _ in range(_TRIES):
        if thread is None or not thread.is_alive() or thread.ident is None:
            return
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
        thread.join(_TRY_S)


def ready() -> bool:
    """True when `draw` can be called without waiting."""
    return _warmth.entry is not None


def compiling() -> bool:
    """True once it is known that the kernels have to be compiled, as they are not in the cache."""
    dispatcher = _warmth.dispatcher
    return dispatcher is not None and sum(dispatcher.stats.cache_misses.values()) > 0


def wait(timeout_s: float | None = None) -> bool:
    """`ready()` after the compiling thread, started if need be, has ended or `timeout_s` has passed."""
    start()
    _warmth.done.wait(timeout_s)
    return ready()


def entry() -> Any:
    """The compiled entry; None before `ready()`."""
    return _warmth.entry


def single_ready() -> bool:
    """True when `single_draw` can be called without waiting: a little later than `ready`."""
    return _warmth.single is not None


def single_entry() -> Any:
    """The compiled entry that draws one row again and again; None before `single_ready()`."""
    return _warmth.single


def law_ready() -> bool:
    """True when `law` can be called without waiting: a little later than `ready`."""
    return _warmth.law is not None


def law_entry() -> Any:
    """The compiled entry that writes laws; None before `law_ready()`."""
    return _warmth.law


def held_ready() -> bool:
    """True when laws on given ids can be found without waiting: last of all."""
    return _warmth.held is not None


def held_entries() -> tuple[Any, ...]:
    """The compiled entries of `held` that gather, weigh, and write shares, alone or among all; once `held_ready()`."""
    assert _warmth.held is not None
    return _warmth.held


def _after_fork() -> None:
    # A child has the compiled code but not the thread that may have been compiling it.
    global _warmth
    entry, single, law, held = _warmth.entry, _warmth.single, _warmth.law, _warmth.held
    _warmth = _Warmth()
    _warmth.entry, _warmth.single, _warmth.law, _warmth.held = entry, single, law, held
    if held is not None:
        _warmth.done.set()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
