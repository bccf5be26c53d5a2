"""How functions are compiled that only other kernels call: as parts of an entry.

By itself Numba optimises each function with all that it calls, and makes machine code of it, again in every function
that calls it. A part is only lowered to LLVM and linked; the entry's module, which has every part once, is then
optimised and made machine code. "kernels ready" of `benchmarks.cold_start` has what that takes.
"""

from __future__ import annotations

from typing import Any

import numba
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder

FIRST, LAST = (0, 61), (0, 68)
"""The releases of Numba whose libraries and caches are known to be made as here, which no public function says."""

_ENVIRONMENT = "_ZN08NumbaEnv"
"""How the names of variables begin that hold the environment of a function: what it needs of Python, here nothing."""


class _NoEnvironment:
    """Takes the environment of a function that is in no process yet."""

    def set_env(self, name: str, environment: Any) -> None:
        """Nothing is there that could hold it."""


class _Part(JITCodeLibrary):
    """The module of one function, with those of what it calls; neither optimised as a whole nor made machine code."""

    @property
    def codegen(self) -> Any:
        return _NoEnvironment()

    def finalize(self) -> None:
        """Makes the module ready to be linked into its callers'."""
        for library in dict.fromkeys(self._linking_libraries):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        for variable in self._final_module.global_variables:
            if variable.name.startswith(_ENVIRONMENT):
                # Else every one of them stays in the entry, with a name as long as the types of all arguments.
                variable.linkage = "internal"
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """No address, as Numba gives for a function without machine code."""
        self._ensure_finalized()
        return 0


class PartCompiler(CompilerBase):
    """Numba's pipeline for functions without Python objects, whose result is a part."""

    def define_pipelines(self) -> list[Any]:
        self.state.library = _Part(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        return [DefaultPassBuilder.define_nopython_pipeline(self.state)]


def is_known(release: str = numba.__version__) -> bool:
    """Whether this is a release of Numba whose inner parts are known."""
    major, minor = (int(number) for number in release.split(".")[:2])
    return FIRST <= (major, minor) <= LAST


def options(release: str = numba.__version__) -> dict[str, Any]:
    """The options by which functions become parts; none under another release of Numba, which compiles each alone."""
    return {"pipeline_class": PartCompiler} if is_known(release) else {}
