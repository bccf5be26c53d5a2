"""What holds for all tests.

Ctrl-C works in them, and in the programs that they start: a shell that starts tests in the background has it ignored,
and children inherit that.

Every process computes with one thread, unless a test says otherwise: tests run side by side, and threads that wait for
each other busily would eat most of the time. The last bits of a matrix product may depend on the number of threads.

Hypothesis tries the same examples in every run, however slow the machine is: some in `make test`, all with
`--hypothesis-profile thorough`, as `make exhaustive` does.

No garbage is collected while the tests are imported and gathered, a third of the time of that: hardly any is made.

A process that has grown forgets what JAX compiled for its tests, and gives back what is free: by the end it would hold
gigabytes. What JAX compiles is kept in a folder of the environment, as the kernels of Numba are: each process would
compile the same programs again.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings
from tries import ALL, SOME

signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything that reads it is imported
os.environ.setdefault("MALLOC_ARENA_MAX", "2")  # read by the processes that run the tests: each thread's own would grow
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(sys.prefix, "jax_programs")))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
slowly = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("tirage", slowly, max_examples=SOME)
settings.register_profile("thorough", slowly, max_examples=ALL)
settings.load_profile("tirage")
gc.disable()  # until everything is collected
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


GROWTH_BYTES = 150_000_000
"""By how much a process may grow before what JAX compiled is forgotten; some tests compile 500 MB."""
LARGE_BYTES = 1_400_000_000
"""Beyond this a process may grow by a quarter of that only."""


TAKEN_FROM = {file.stem for file in Path(__file__).parent.glob("*.py")} - {"servers", "server_forks", "later"}


def resident_bytes() -> int:
    """Memory that this process holds; 0 where the system does not tell."""
    told = Path("/proc/self/statm")
    return int(told.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if told.exists() else 0


def pytest_collection_finish() -> None:
    """Ten thousand collected tests stay until the end: the garbage collector need not look at them again and again."""
    gc.freeze()
    gc.enable()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What a module and its sources remember for its tests, models and texts among them, goes with the last of them."""
    module = item.getparent(pytest.Module)
    if module is not None and (nextitem is None or nextitem.getparent(pytest.Module) is not module):
        for each in sources_of(module.obj):
            for remembered in vars(each).values():
                if getattr(remembered, "__module__", None) == each.__name__ and hasattr(remembered, "cache_clear"):
                    remembered.cache_clear()


def sources_of(module: ModuleType) -> list[ModuleType]:
    """The module and those of the tests that it takes something from, but for those that hold running servers."""
    taken = vars(module).values()
    names = {getattr(each, "__name__" if isinstance(each, ModuleType) else "__module__", "") for each in taken}
    others = {name for name in names if isinstance(name, str)} & TAKEN_FROM - {module.__name__}
    return [module, *(sys.modules[name] for name in others if name in sys.modules)]


@pytest.fixture(scope="module")
def plain_programs() -> Iterator[None]:
    """XLA takes no pains over programs that run once or twice; where their bits are the question, it does."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="session")
def held() -> dict[str, int]:
    return {"bytes": resident_bytes()}


@pytest.fixture(autouse=True)
def memory_is_given_back(held: dict[str, int]) -> Iterator[None]:
    yield
    now, before = resident_bytes(), held["bytes"]
    if now < before + GROWTH_BYTES and now < max(LARGE_BYTES, before + GROWTH_BYTES // 4):
        return
    if jax := sys.modules.get("jax"):
        jax.clear_caches()
    # Models and engines lie in cycles, and what is free lies between what is not: glibc would keep all of it.
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    held["bytes"] = resident_bytes()
