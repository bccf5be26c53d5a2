"""Work that may hang, beside the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """What a function returns, run in a thread of its own that does not keep the process from ending."""
    loop, future = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

    def tell(setter: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            setter(value)

    def work() -> None:
        try:
            outcome = future.set_result, function(*arguments)
        except BaseException as error:
            outcome = future.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop may be closed by now, and nobody waits
            loop.call_soon_threadsafe(tell, *outcome)

    threading.Thread(target=work, daemon=True).start()
    return await future
