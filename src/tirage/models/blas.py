"""One thread for matrix products: BLAS splits sums by its threads, so their number changes the last bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps
from threading import Lock
from typing import Any, ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class OneThread:
    """Holds every loaded BLAS to one thread while anybody is inside, and gives it back its threads afterwards.

    Threads may be inside together: the first in changes the numbers, the last out restores them. A BLAS that cannot
    be told (Apple's Accelerate) keeps its own number.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._before = Lock(), 0, list[int]()

    @cached_property
    def _libraries(self) -> list[Any]:
        # Found at first use, when NumPy has loaded its own.
        return ThreadpoolController().select(user_api="blas").lib_controllers

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._before = [library.get_num_threads() for library in self._libraries]
                self._set([1] * len(self._libraries))
            self._inside += 1

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._set(self._before)

    def _set(self, numbers: list[int]) -> None:
        for library, number in zip(self._libraries, numbers, strict=True):
            library.set_num_threads(number)


_ONE = OneThread()


def on_one_thread(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, with BLAS held to one thread while it runs."""

    @wraps(function)
    def held(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with _ONE:
            return function(*args, **kwargs)

    return held
