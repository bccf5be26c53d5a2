"""Running functions that may hang in threads of their own, and the number of threads that a model uses."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """The function's result, computed in a daemon thread, which does not keep the process from exiting."""
    loop, future = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

    def settle(setter: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            setter(value)

    def work() -> None:
        try:
            outcome = future.set_result, function(*arguments)
        except BaseException as error:
            outcome = future.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop may be closed by now
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=work, daemon=True).start()
    return await future


def use_threads(count: int | None) -> None:
    """Has models compute on so many threads of the CPU; None leaves that as it is.

    It counts for libraries that are loaded already, and for files of llama.cpp that are opened later.
    """
    if count is None:
        return
    os.environ["OMP_NUM_THREADS"] = str(count)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)
