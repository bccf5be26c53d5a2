"""LoRA adapters: several in memory, a different one or none for every row of a forward pass."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tirage.errors import ModelError

_BASE = "__base__"


class Adapters:
    """The adapters of a model by name; without any the model is called as it is."""

    def __init__(self, module: Any, folders: Mapping[str, Any]) -> None:
        self.names = frozenset(folders)
        self._module = module
        self._peft: Any = None
        for name, folder in folders.items():
            check_adapter(name, Path(folder))
            self._load(name, Path(folder))

    def _load(self, name: str, folder: Path) -> None:
        try:
            from peft import PeftModel
        except ImportError as error:
            raise ModelError("adapters need peft: pip install 'tirage[torch]'") from error
        try:
            if self._peft is None:
                self._peft = PeftModel.from_pretrained(self._module, str(folder), adapter_name=name)
            else:
                self._peft.load_adapter(str(folder), adapter_name=name)
        except Exception as error:  # peft reports a mismatch in many ways
            raise ModelError(f"adapter {name!r} in {folder} does not fit the model: {error}") from error
        self._peft.eval()

    def run(self, names: Sequence[str | None], inputs: Mapping[str, Any]) -> Any:
        """The model's forward pass with an adapter, or none, for each row of the batch."""
        if self._peft is None:
            return self._module(**inputs)
        failure = None
        with self._chosen(names):
            try:
                return self._module(**inputs)
            except BaseException as error:
                # peft takes its hooks off only when no exception passes.
                failure = error
        raise failure

    def _chosen(self, names: Sequence[str | None]) -> AbstractContextManager[Any]:
        if all(name is None for name in names):
            return self._peft.disable_adapter()
        return self._peft._enable_peft_forward_hooks(adapter_names=[_BASE if n is None else n for n in names])


def check_adapter(name: str, folder: Path) -> None:
    """Raises ModelError for a folder that is no plain LoRA in safetensors: nothing else is opened."""
    path = folder / "adapter_config.json"
    if not path.is_file() or not (folder / "adapter_model.safetensors").is_file():
        raise ModelError(
            f"adapter {name!r} must be a folder with adapter_config.json and adapter_model.safetensors, got {folder}"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise ModelError(f"{path}: peft_type must be 'LORA'; other kinds cannot be mixed in a batch")
