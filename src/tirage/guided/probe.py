"""Trial compilations in child processes, so that no grammar can hold up or bring down the process that serves.

The compilers bound part of their work, but not all: a schema with thousands of properties or one large `multipleOf`
keeps them busy for many seconds. A child that exceeds the limit is killed, and the next grammar gets a new one.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import time
from pathlib import Path
from typing import Any

from tirage.cancel import POLL_S, checkpoint
from tirage.children import Child, Children
from tirage.errors import GrammarError

SECONDS = 1.0
"""Processor time of a trial. What passes takes about as long again in the serving process: both end within 2 s."""
_PATIENCE = 10.0
"""How many times its processor time a trial may take on a machine that is busy with other things."""
MEGABYTES = 256
_STARTUP_S = 60.0
_WORKERS = 4


class LimitError(GrammarError):
    """A grammar that asks for more time or memory than a compilation may have."""


class Probe:
    """A few children that compile grammars on trial."""

    def __init__(self) -> None:
        # One kind per compiler: memory is limited to what a compiler adds.
        self._children = Children(lambda _: TrialProcess(), limit=_WORKERS)

    def try_out(self, task: dict[str, Any], load: dict[str, Any], *, seconds: float = SECONDS) -> dict[str, Any]:
        """What a child answers to a task, after it was told to `load` what the task needs.

        `seconds` is processor time; on a busy machine the answer may take ten times as long. Raises LimitError when
        the child runs over its time or memory; it is dead by then.
        """
        with self._children.one(load["compiler"]) as child:
            child.load(load)
            return child.ask(task | {"seconds": seconds}, seconds * _PATIENCE)

    def close(self) -> None:
        """Ends the idle children."""
        self._children.close()


class TrialProcess(Child):
    """One running worker."""

    def __init__(self) -> None:
        super().__init__(Path(__file__).with_name("worker.py"), environment=os.environ)
        self._loaded: set[str] = set()

    def load(self, task: dict[str, Any]) -> None:
        """Has the child load a compiler, once."""
        name = task["compiler"] + task.get("vocabulary", "")
        if name not in self._loaded:
            self.ask(task, _STARTUP_S)
            self._loaded.add(name)

    def ask(self, task: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The child's answer; GrammarError when it takes longer or dies."""
        try:
            self.input.write(json.dumps(task).encode() + b"\n")
            self.input.flush()
        except (OSError, ValueError):
            raise _too_large() from None
        line = self._line(time.monotonic() + seconds)
        if line is None:
            raise _too_slow()
        if not line.endswith(b"\n"):
            self.kill()
            raise _too_slow() if -self.process.returncode in _ALARMS else _too_large()
        return json.loads(line)

    def _line(self, deadline: float) -> bytes | None:
        """The next line of the child, less when it dies, None when time is up."""
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.output, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(min(POLL_S, max(0.0, deadline - time.monotonic()))):
                    checkpoint()
                    if time.monotonic() >= deadline:
                        return None
                    continue
                part = os.read(self.output.fileno(), 1 << 20)
                if not part:
                    return line
                line += part
        return line


_ALARMS = (signal.SIGPROF, signal.SIGALRM)


def _too_slow() -> LimitError:
    return LimitError(f"grammar must compile within {SECONDS + 1:g} s, got one that does not; make it smaller")


def _too_large() -> LimitError:
    return LimitError(f"grammar must compile within {MEGABYTES} MB, got one that does not; make it smaller")


PROBE = Probe()
