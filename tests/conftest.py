"""What holds for all tests.

Ctrl-C works in them, and in the programs that they start: a shell that starts tests in the background has it ignored,
and children inherit that.

Every process computes with one thread, unless a test says otherwise: tests run side by side, and threads that wait for
each other busily would eat most of the time. The last bits of a matrix product may depend on the number of threads.

Hypothesis tries the same examples in every run, however slow the machine is.

A process forgets after each file what JAX compiled for its tests, which nobody asks for again, and gives back what is
free: by the end it would be gigabytes.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything that reads it is imported
settings.register_profile("tirage", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tirage")


@pytest.fixture(autouse=True, scope="module")
def memory_is_given_back_after_each_file() -> Iterator[None]:
    yield
    if jax := sys.modules.get("jax"):
        jax.clear_caches()
    # What is free lies between what is not, and glibc would keep all of it.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
