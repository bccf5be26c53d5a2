"""Single-threaded BLAS: the number of threads changes the order of sums, and so the last bits of products."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps
from threading import Lock
from typing import Any, ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class SingleThreadedBlas:
    """A context in which every loaded BLAS uses one thread; the number of threads is restored afterwards.

    Several Python threads can be inside at once: the first one in sets the numbers, the last one out restores them. A
    BLAS without a setting (Apple's Accelerate) keeps its number.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._before = Lock(), 0, list[int]()

    @cached_property
    def _libraries(self) -> list[Any]:
        # Looked up at first use, when NumPy has loaded its BLAS.
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


_SINGLE_THREADED = SingleThreadedBlas()


def on_one_thread(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, which then runs with a single-threaded BLAS."""

    @wraps(function)
    def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with _SINGLE_THREADED:
            return function(*args, **kwargs)

    return wrapper
