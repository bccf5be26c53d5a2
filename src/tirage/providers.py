"""What upper parts provide to lower ones under a name, so that nothing imports upwards.

The package itself, which knows every part, says where each provider is; its module loads on first use.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
# Without `typing`, which takes longer to import than all else that `import tirage` does.
if TYPE_CHECKING:
    from typing import Any

_targets: dict[str, tuple[str, str]] = {}


def register_provider(name: str, module: str, attribute: str) -> None:
    """Makes `attribute` of `module` known under a name; nothing is imported yet."""
    _targets[name] = (module, attribute)


def load_provider(name: str) -> Any:
    """The object that was registered under `name`; ModuleNotFoundError where its module lacks a dependency."""
    module, attribute = _targets[name]
    return getattr(import_module(module), attribute)
