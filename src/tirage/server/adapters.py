"""LoRA adapters that come and go while the server runs, from folders below the operator's `--lora-root`."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

from tirage.errors import ModelError, ParamsError
from tirage.llm import LLM
from tirage.server.errors import Refusal
from tirage.server.options import Options, check_limit
from tirage.server.threads import in_thread

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_log = logging.getLogger("tirage.server")


class LoadedAdapters:
    """The adapters of a server by name: those that it was started with, and those that were loaded since."""

    def __init__(self, llm: LLM, options: Options) -> None:
        self._llm, self._options = llm, options
        self._own = [text.partition("=")[0] for text in options.lora]
        self._loaded: dict[str, str] = {}
        self._loading = asyncio.Lock()

    @property
    def names(self) -> list[str]:
        """The names that requests may give."""
        return [*self._own, *self._loaded]

    @property
    def loaded(self) -> dict[str, str]:
        """The folders of those that were loaded, below the root, by name."""
        return dict(self._loaded)

    async def load(self, name: str, path: str) -> None:
        """Loads an adapter; requests that run go on meanwhile.

        Raises Refusal for a name that is taken or no name, a folder that is not below the root, and one that holds no
        LoRA adapter of this model; ParamsError where as many are loaded as the operator allows.
        """
        async with self._loading:
            self._check_name(name)
            check_limit(self._options.limits, "max_loaded_loras", len(self._loaded) + 1, "loaded adapters")
            folder = self._folder(path)
            try:
                await in_thread(self._llm.engine.load_adapter, name, folder)
            except ParamsError:
                raise Refusal(
                    400, f"lora_name must be free, got {name!r}; it is being unloaded", param="lora_name"
                ) from None
            except ModelError as error:
                _log.error("the adapter %s was not loaded: %s", name, error)
                raise unusable(path) from None
            self._loaded[name] = path

    async def unload(self, name: str) -> None:
        """Unloads an adapter: new requests with it are refused at once, and those that run end first.

        Raises Refusal for a name that was not loaded since the start.
        """
        if name in self._own:
            text = f"lora_name must be an adapter that was loaded since the start, got {name!r:.80}"
            raise Refusal(400, f"{text}, which the server was started with", param="lora_name")
        if self._loaded.pop(name, None) is None:
            raise Refusal(404, f"lora_name must be a loaded adapter, got {name!r:.80}", param="lora_name")
        await in_thread(self._llm.engine.unload_adapter, name)

    def _check_name(self, name: str) -> None:
        if _NAME.fullmatch(name) is None:
            rule = "be 1 to 128 letters, digits, dots, hyphens and underscores"
            raise Refusal(400, f"lora_name must {rule}, got {name!r:.80}", param="lora_name")
        if name in {self._options.model_name, *self.names}:
            text = f"lora_name must be free, got {name!r}, which is loaded; unload it first"
            raise Refusal(400, text, param="lora_name")

    def _folder(self, path: str) -> Path:
        """The folder at a path below the root; one refusal for all others, so that nobody learns what there is."""
        assert self._options.lora_root is not None
        root = self._options.lora_root.resolve()
        try:
            folder = (root / path).resolve()
        except (OSError, ValueError):
            raise unusable(path) from None
        if "\0" in path or root not in folder.parents or not folder.is_dir():
            raise unusable(path)
        return folder


def unusable(path: str) -> Refusal:
    """The refusal of a folder that is not below the root, or holds no adapter of this model."""
    text = f"lora_path must be a folder below --lora-root with a LoRA adapter of this model, got {path!r:.80}"
    return Refusal(400, f"{text}; the server's log says more", param="lora_path")
