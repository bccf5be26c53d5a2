"""LoRA adapters: several in memory, a different one or none for every row of a forward pass.

Adapters that peft can mix in one batch share one tree of modules. Any other has a tree of its own over the same
weights and rows of its own passes, so that it changes nothing for the base model and for other adapters.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tirage.errors import ModelError

_BASE = "__base__"
# What a plain LoRA may set. Any other field that is set asks for more than two matrices beside a layer.
_PLAIN = frozenset({
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "exclude_modules", "fan_in_fan_out",
    "inference_mode", "init_lora_weights", "layers_pattern", "layers_to_transform", "lora_alpha", "lora_dropout",
    "megatron_core", "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern", "revision",
    "target_modules", "task_type", "use_rslora",
})  # fmt: skip
# What may be set beside that without a change to the base model's weights.
_ISOLATED = frozenset({
    "ensure_weight_tying", "lora_bias", "modules_to_save", "target_parameters", "trainable_token_indices", "use_dora",
})  # fmt: skip
# Initialisations that leave the base model's weights alone; peft repeats others (PiSSA, OLoRA, ...) when it loads.
_HARMLESS = (True, False, None, "gaussian", "orthogonal")
_REFUSED = {
    "alora_invocation_tokens": "an adapter that begins within a text",
    "arrow_config": "a choice between adapters for each token",
    "layer_replication": "another number of layers",
}
# Tokens of a row of the trial pass, unlike its number of rows.
_TRIED = 5
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}
_LOW_PRECISION = 2e-2
_log = logging.getLogger("tirage")


class Adapters:
    """The adapters of a model by name; without any the model is called as it is.

    Each is tried when it is loaded: ModelError for one with which the model does not run.
    """

    def __init__(self, module: Any, folders: Mapping[str, Any]) -> None:
        self.names = frozenset(folders)
        self._module = module
        self._own: dict[str, Any] = {}
        self._mixed: Any = None
        self._active: str | None = None
        plain: dict[str, Path] = {}
        tried: dict[str, Tensor] = {}
        for name, folder in folders.items():
            config = check_adapter(name, Path(folder))
            tree = load(twin(module, config), name, Path(folder))
            tried[name], in_rows = try_adapter(tree, name, Path(folder))
            if in_rows and is_plain(config):
                plain[name] = Path(folder)
            else:
                self._own[name] = tree
        if plain:
            self._mix(plain, tried)
        if self._own:
            _log.info("adapters with forward passes of their own: %s", ", ".join(sorted(self._own)))

    @property
    def trees(self) -> Sequence[Any]:
        """The modules that adapters have for themselves, beside the model."""
        return [tree.get_base_model() for tree in self._own.values()]

    def lane(self, name: str | None) -> str | None:
        """What rows must have in common to share a forward pass: the name of an adapter that cannot be mixed."""
        return name if name in self._own else None

    def run(self, names: Sequence[str | None], inputs: Mapping[str, Any]) -> Any:
        """The model's forward pass with an adapter, or none, for each row; those of one `lane` at a time."""
        if names[0] in self._own:
            return self._own[names[0]].get_base_model()(**inputs)
        if self._mixed is None:
            return self._module(**inputs)
        if len(set(names)) == 1:
            self._activate(names[0])
            return self._module(**inputs)
        with self._each(names):
            return self._module(**inputs)

    def _mix(self, plain: Mapping[str, Path], tried: Mapping[str, Tensor]) -> None:
        """Loads plain adapters into the model itself, unless a mixed pass gives other logits than each alone."""
        base = try_rows(self._module)
        for name, folder in plain.items():
            self._mixed = load(self._module, name, folder) if self._mixed is None else add(self._mixed, name, folder)
        self._active = next(iter(plain))
        names = list(plain)
        wanted = torch.cat([base[:1], *(tried[name][:1] for name in names)])
        try:
            with self._each([None, *names]):
                got = try_rows(self._module, rows=len(wanted))
            reason = "" if is_close(wanted, got) else "logits of a mixed pass differ from those of each alone"
        except Exception as error:  # peft and the models refuse in many ways
            reason = f"{type(error).__name__}: {error}"
        if reason:
            _log.info("adapters are not mixed in one pass: %s", reason)
            self._module, self._mixed = self._mixed.unload(), None
            self._own |= {name: load(twin(self._module, {}), name, folder) for name, folder in plain.items()}
        else:
            self._activate(None)

    def _activate(self, name: str | None) -> None:
        """Makes one adapter of the mixed ones, or none, act on every row."""
        if name == self._active:
            return
        tuner = self._mixed.base_model
        if name is None:
            tuner.disable_adapter_layers()
        else:
            tuner.enable_adapter_layers()
            self._mixed.set_adapter(name, inference_mode=True)
        self._active = name

    @contextmanager
    def _each(self, names: Sequence[str | None]) -> Iterator[None]:
        """peft's hooks that give each row its adapter; they come off whatever happens."""
        if self._active is None:
            self._activate(next(name for name in names if name is not None))
        failure = None
        with self._mixed._enable_peft_forward_hooks(adapter_names=[_BASE if n is None else n for n in names]):
            try:
                yield
            except BaseException as error:
                # peft takes its hooks off only when no exception passes.
                failure = error
        if failure is not None:
            raise failure


def check_adapter(name: str, folder: Path) -> dict[str, Any]:
    """The configuration of an adapter.

    Raises ModelError for a folder that is no LoRA in safetensors: nothing else is opened.
    """
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
        raise ModelError(f"{path}: peft_type must be 'LORA'; merge an adapter of another kind into its model")
    for key, what in _REFUSED.items():
        if config.get(key):
            raise ModelError(f"{path}: {key} must be absent, {what} is not supported; merge the adapter into its model")
    return config


def is_plain(config: Mapping[str, Any]) -> bool:
    """Whether an adapter's configuration asks for nothing but two matrices beside each of its layers."""
    return not set_fields(config) - _PLAIN and not changes_weights(config) and not changes_biases(config)


def changes_weights(config: Mapping[str, Any]) -> bool:
    """Whether peft may replace weights of the base model when it loads the adapter."""
    known = not set_fields(config) - _PLAIN - _ISOLATED
    return not known or config.get("init_lora_weights", True) not in _HARMLESS


def set_fields(config: Mapping[str, Any]) -> set[str]:
    """The fields of a configuration that are not empty or off."""
    return {key for key, value in config.items() if value}


def changes_biases(config: Mapping[str, Any]) -> bool:
    """Whether the adapter brings biases in place of those of the base model."""
    return config.get("bias", "none") != "none"


def twin(module: Any, config: Mapping[str, Any]) -> Any:
    """Another tree of modules over the same weights, but for those that the adapter replaces."""

    def is_replaced(name: str) -> bool:
        return changes_weights(config) or (changes_biases(config) and "bias" in name)

    leaves = [part for part in module.modules() if not any(part.children())]
    same = {id(leaf): leaf for leaf in leaves if not any(is_replaced(name) for name, _ in leaf.named_parameters())}
    same |= {id(weight): weight for name, weight in module.named_parameters() if not is_replaced(name)}
    return copy.deepcopy(module, same)


def load(module: Any, name: str, folder: Path) -> Any:
    """The module with an adapter; ModelError for one that does not fit."""
    try:
        from peft import PeftModel
    except ImportError as error:
        raise ModelError("adapters need peft: pip install 'tirage[torch]'") from error
    with refusals(name, folder, "does not fit the model"):
        return PeftModel.from_pretrained(module, str(folder), adapter_name=name).eval()


def add(tree: Any, name: str, folder: Path) -> Any:
    """The tree with one adapter more."""
    with refusals(name, folder, "does not fit the model"):
        tree.load_adapter(str(folder), adapter_name=name)
    return tree.eval()


@contextmanager
def refusals(name: str, folder: Path, what: str) -> Iterator[None]:
    """Turns whatever goes wrong with an adapter into a ModelError that names it."""
    try:
        yield
    except Exception as error:  # peft and the models report a mismatch in many ways
        raise ModelError(f"adapter {name!r} in {folder} {what}: {type(error).__name__}: {error}") from error


def try_adapter(tree: Any, name: str, folder: Path) -> tuple[Tensor, bool]:
    """Logits [2, V] of a short pass with the adapter, and whether each of its layers sees the rows as they are.

    Layers of experts and the like see tokens of all rows in one list, where adapters cannot be told by rows.
    """
    from peft.tuners.lora import LoraLayer

    seen: list[tuple[int, ...]] = []
    layers: list[Any] = [part for part in tree.modules() if isinstance(part, LoraLayer)]

    def look(_: Any, args: Sequence[Tensor]) -> None:
        seen.append(tuple(args[0].shape[:2]))

    hooks = [layer.register_forward_pre_hook(look) for layer in layers]
    try:
        with refusals(name, folder, "cannot be run with the model; merge it into the model's folder, or leave it out"):
            logits = try_rows(tree.get_base_model())
    finally:
        for hook in hooks:
            hook.remove()
    return logits, all(shape == (2, _TRIED) for shape in seen)


@torch.inference_mode()
def try_rows(module: Any, *, rows: int = 2) -> Tensor:
    """Last logits [rows, V] of a short pass over equal rows of ordinary tokens."""
    count = module.get_input_embeddings().weight.shape[0]
    # Special and placeholder ids tend to lie at either end.
    ids = count // 3 + torch.arange(_TRIED, device=module.device) % max(1, count // 3)
    return module(input_ids=ids.expand(rows, -1), use_cache=False).logits[:, -1]


def is_close(wanted: Tensor, got: Tensor) -> bool:
    """Whether two passes agree up to rounding."""
    error = (wanted.float() - got.float()).abs().max() / wanted.float().abs().max().clamp_min(1e-30)
    return bool(error <= _TOLERANCE.get(wanted.dtype, _LOW_PRECISION))
