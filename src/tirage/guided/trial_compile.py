"""Trial compilations in child processes, so that no grammar can block or crash the serving process.

The compilers limit only part of their work: a schema with thousands of properties or a single large `multipleOf` keeps
them busy for many seconds. A child that exceeds a limit is killed, and the next grammar gets a new one.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from tirage.errors import GrammarError
from tirage.workers.children import Child, Children

SECONDS = 1.0
"""Processor time of a trial. The compilation in the serving process takes as long again: together at most 2 s."""
_PATIENCE = 10.0
"""Wall-clock time of a trial, as a multiple of its processor time: the machine may be busy."""
MEGABYTES = 256
_STARTUP_S = 60.0
_WORKERS = 4


class LimitError(GrammarError):
    """Raised for a grammar whose compilation takes too much time or memory.

    `timed_out`: it waited too long by the clock, as any may on a busy machine; another attempt may succeed.
    """

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out

    def about(self, name: str) -> LimitError:
        """The same error, which begins with the name of what was compiled."""
        return LimitError(f"{name} {str(self).partition(' ')[2]}", timed_out=self.timed_out)


class TrialCompiler:
    """A small pool of child processes that compile grammars on trial."""

    def __init__(self) -> None:
        # A child serves one compiler, because its memory limit is relative to what that compiler takes.
        self._children = Children(lambda _: TrialProcess(), limit=_WORKERS)

    def compile(self, task: dict[str, Any], load: dict[str, Any], *, seconds: float = SECONDS) -> dict[str, Any]:
        """The answer of a child to a task, for which it first has to `load` a compiler and perhaps a vocabulary.

        `seconds` is processor time; on a busy machine the answer may take ten times as long. Raises LimitError when the
        child exceeds its time or memory; it has been killed by then.
        """
        with self._children.one(load["compiler"]) as child:
            child.load(load)
            return child.ask(task | {"seconds": seconds}, seconds * _PATIENCE)

    def close(self) -> None:
        """Ends the idle children."""
        self._children.close()


class TrialProcess(Child):
    """A running `trial_worker`."""

    def __init__(self) -> None:
        super().__init__(Path(__file__).with_name("trial_worker.py"), environment=os.environ)
        self._loaded: set[str] = set()

    def load(self, task: dict[str, Any]) -> None:
        """Makes the child load a compiler, once; LimitError when that fails."""
        name = task["compiler"] + task.get("vocabulary", "")
        if name not in self._loaded:
            self.ask(task, _STARTUP_S)
            self._loaded.add(name)

    def ask(self, task: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The child's answer to a task; LimitError when it takes longer than `seconds` or dies."""
        try:
            self.input.write(json.dumps(task).encode() + b"\n")
            self.input.flush()
        except (OSError, ValueError):
            raise _too_large() from None
        line = self.line(time.monotonic() + seconds)
        if line is None:
            raise _too_slow(timed_out=True)
        if not line.endswith(b"\n"):
            self.kill()
            signaled = -self.process.returncode
            raise _too_slow(timed_out=signaled == signal.SIGALRM) if signaled in _ALARMS else _too_large()
        return json.loads(line)


_ALARMS = (signal.SIGPROF, signal.SIGALRM)


def _too_slow(*, timed_out: bool) -> LimitError:
    text = f"grammar must compile within {SECONDS + 1:g} s, got one that does not; make it smaller"
    return LimitError(text, timed_out=timed_out)


def _too_large() -> LimitError:
    return LimitError(f"grammar must compile within {MEGABYTES} MB, got one that does not; make it smaller")


TRIALS = TrialCompiler()
