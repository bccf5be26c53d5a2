"""The classes of SGLang's published wheel, imported where there is no GPU.

The wheel imports packages that a sampler never calls. Those that do not work beside a CPU's torch are stood in for by
modules whose attributes are empty classes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# It looks for torchvision while it is imported, and must find that there is none.
import transformers.image_transforms

NEVER_CALLED = ("torchvision", "gguf")


class _EmptyKind(type):
    def __getattr__(cls, name: str) -> Any:
        return _empty(name)


class _EmptyModule(ModuleType):
    __path__: Sequence[str] = ()

    def __getattr__(self, name: str) -> Any:
        return _empty(name)


def _empty(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _EmptyKind(name, (), {"__init__": lambda *_, **__: None})


class _StandIns(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.split(".")[0] in NEVER_CALLED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _EmptyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.append(_StandIns())
__all__ = ["transformers"]
