"""LoRA adapters: several in memory, and a different one or none for each row of a forward pass.

Adapters that peft can mix in one batch share the modules of the base model. Any other has a module tree of its own over
the same weights and is run in separate passes, so that it does not affect the base model or other adapters.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tirage.errors import ModelError, ParamsError
from tirage.models.json_file import read_json_object
from tirage.models.weights import stored_shapes

_BASE = "__base__"
_WEIGHTS = "adapter_model.safetensors"
# The fields that a plain LoRA may set. Any other asks for more than two matrices beside a layer.
_PLAIN = frozenset({
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "exclude_modules", "fan_in_fan_out",
    "inference_mode", "init_lora_weights", "layers_pattern", "layers_to_transform", "lora_alpha", "lora_dropout",
    "megatron_core", "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern", "revision",
    "target_modules", "task_type", "use_rslora",
})  # fmt: skip
# The further fields that leave the weights of the base model unchanged.
_ISOLATED = frozenset({
    "ensure_weight_tying", "lora_bias", "modules_to_save", "target_parameters", "trainable_token_indices", "use_dora",
})  # fmt: skip
# Initialisations that leave the base weights unchanged; peft repeats others (PiSSA, OLoRA, ...) when it loads.
_KEEPING_WEIGHTS = (True, False, None, "gaussian", "orthogonal")
_REFUSED = {
    "alora_invocation_tokens": "an adapter that begins within a text",
    "arrow_config": "a choice between adapters for each token",
    "layer_replication": "another number of layers",
}
# The number of tokens of a row in the trial pass; it differs from the number of rows.
_TRIAL_TOKENS = 5
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}
_LOW_PRECISION = 2e-2
_log = logging.getLogger("tirage")


class Adapters:
    """The adapters of a model by name; without adapters the model is called directly.

    Each is tried when it is loaded. With `grows` more may be loaded later, each with forward passes of its own. Raises
    ModelError for one that cannot be loaded or with which the model cannot run.
    """

    def __init__(self, module: Any, folders: Mapping[str, Any], *, grows: bool = False) -> None:
        self.names = frozenset(folders)
        self._module = module
        # Made before peft puts layers of its own into the module.
        self._bare = shared_copy(module, {}) if grows else None
        self._separate: dict[str, Any] = {}
        self._mixed: Any = None
        self._active: str | None = None
        plain: dict[str, Path] = {}
        tried: dict[str, Tensor] = {}
        for name, folder in folders.items():
            config = check_adapter(name, Path(folder))
            tree = load(shared_copy(module, config), name, Path(folder))
            tried[name], in_rows = try_adapter(tree, name, Path(folder))
            if in_rows and is_plain(config):
                plain[name] = Path(folder)
            else:
                self._separate[name] = tree
        if plain:
            self._mix(plain, tried)
        if self._separate:
            _log.info("adapters with forward passes of their own: %s", ", ".join(sorted(self._separate)))

    @property
    def trees(self) -> Sequence[Any]:
        """The module trees of adapters that cannot be mixed."""
        return [tree.get_base_model() for tree in self._separate.values()]

    @property
    def present(self) -> Set[str]:
        """The names of all adapters that rows may use: those of `names`, and retired ones until they are removed."""
        return self.names | self._separate.keys()

    def group_key(self, name: str | None) -> str | None:
        """What rows must have in common to share a pass: the name of an adapter that cannot be mixed, or None."""
        return name if name in self._separate else None

    def run(self, names: Sequence[str | None], inputs: Mapping[str, Any]) -> Any:
        """The output of a forward pass over rows with the same `group_key`, each with its adapter or none."""
        if names[0] in self._separate:
            return self._separate[names[0]].get_base_model()(**inputs)
        if self._mixed is None:
            return self._module(**inputs)
        if len(set(names)) == 1:
            self._activate(names[0])
            return self._module(**inputs)
        with self._each(names):
            return self._module(**inputs)

    def prepare(self, name: str, folder: Path) -> Any:
        """The module tree of another adapter, for `add`; may be called while the model runs.

        Raises ParamsError where no adapter may be loaded later, and ModelError as the class does.
        """
        if self._bare is None:
            raise ParamsError("adapters must be loaded with the model, unless it was opened with enable_lora=True")
        config = check_adapter(name, folder)
        tree = load(shared_copy(self._bare, config), name, folder)
        try_adapter(tree, name, folder)
        return tree

    def add(self, name: str, tree: Any) -> None:
        """Adds a prepared adapter, between two steps. Raises ParamsError for a name that is there already."""
        if name in self.names or name in self._separate:
            raise ParamsError(f"adapter must have a name of its own, got {name!r}, which is loaded; unload that first")
        self._separate[name], self.names = tree, self.names | {name}

    def retire(self, name: str) -> None:
        """Has new requests with an adapter refused, while those that run go on.

        Raises ParamsError for a name that is unknown, or whose adapter is part of the model.
        """
        if name not in self.names or name not in self._separate:
            raise ParamsError(f"adapter must be one that was loaded later, got {name!r}")
        self.names -= {name}

    def remove(self, name: str) -> None:
        """Drops a retired adapter, between two steps, when no request uses it any more."""
        del self._separate[name]

    def _mix(self, plain: Mapping[str, Path], tried: Mapping[str, Tensor]) -> None:
        """Loads plain adapters into the model itself, unless a mixed pass gives other logits than separate ones."""
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
            for name, folder in plain.items():
                self._separate[name] = load(shared_copy(self._module, {}), name, folder)
        else:
            self._activate(None)

    def _activate(self, name: str | None) -> None:
        """Makes one of the mixed adapters, or none, apply to all rows."""
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
        """Installs peft's hooks that give each row its adapter, and removes them even after an exception."""
        if self._active is None:
            self._activate(next(name for name in names if name is not None))
        failure = None
        with self._mixed._enable_peft_forward_hooks(adapter_names=[_BASE if n is None else n for n in names]):
            try:
                yield
            except BaseException as error:
                # peft removes its hooks only if no exception passes through.
                failure = error
        if failure is not None:
            raise failure


def check_adapter(name: str, folder: Path) -> dict[str, Any]:
    """The configuration of an adapter. Raises ModelError for a folder that is no LoRA in safetensors."""
    path = folder / "adapter_config.json"
    if not path.is_file() or not (folder / _WEIGHTS).is_file():
        raise ModelError(
            f"adapter {name!r} must be a folder with adapter_config.json and adapter_model.safetensors, got {folder}"
        )
    config = read_json_object(path)
    if config.get("peft_type") != "LORA":
        raise ModelError(f"{path}: peft_type must be 'LORA'; merge an adapter of another kind into its model")
    for key, what in _REFUSED.items():
        if config.get(key):
            raise ModelError(f"{path}: {key} must be absent, {what} is not supported; merge the adapter into its model")
    with as_model_error(name, folder, "does not fit the model"):
        shapes = stored_shapes(folder / _WEIGHTS)
    check_ranks(config, path, max((size for shape in shapes.values() for size in shape), default=0))
    return config


def check_ranks(config: Mapping[str, Any], path: Path, most: int) -> None:
    """Raises ModelError for a rank above every dimension of the stored matrices, for which peft would take memory."""
    pattern = config.get("rank_pattern") or {}
    ranks = [config.get("r", 0), *(pattern.values() if isinstance(pattern, Mapping) else ())]
    for rank in ranks:
        if isinstance(rank, (int, float)) and rank > most:
            raise ModelError(
                f"{path}: r must be at most {most}, the largest dimension in {_WEIGHTS}, got {rank}; "
                "take the adapter_config.json that belongs to these weights"
            )


def is_plain(config: Mapping[str, Any]) -> bool:
    """Whether an adapter consists of just two matrices beside each of its layers."""
    return not set_fields(config) - _PLAIN and not changes_weights(config) and not changes_biases(config)


def changes_weights(config: Mapping[str, Any]) -> bool:
    """Whether peft may change weights of the base model when it loads the adapter."""
    known = not set_fields(config) - _PLAIN - _ISOLATED
    return not known or config.get("init_lora_weights", True) not in _KEEPING_WEIGHTS


def set_fields(config: Mapping[str, Any]) -> set[str]:
    """The fields of a configuration that are neither empty nor off."""
    return {key for key, value in config.items() if value}


def changes_biases(config: Mapping[str, Any]) -> bool:
    """Whether the adapter replaces biases of the base model."""
    return config.get("bias", "none") != "none"


def shared_copy(module: Any, config: Mapping[str, Any]) -> Any:
    """Another module tree over the same weights, except those that the adapter replaces."""

    def is_replaced(name: str) -> bool:
        return changes_weights(config) or (changes_biases(config) and "bias" in name)

    leaves = [part for part in module.modules() if not any(part.children())]
    same = {id(leaf): leaf for leaf in leaves if not any(is_replaced(name) for name, _ in leaf.named_parameters())}
    same |= {id(weight): weight for name, weight in module.named_parameters() if not is_replaced(name)}
    return copy.deepcopy(module, same)


def load(module: Any, name: str, folder: Path) -> Any:
    """The module with an adapter; ModelError if the adapter does not fit or peft is missing."""
    try:
        from peft import PeftModel
    except ImportError as error:
        raise ModelError("adapters need peft: pip install 'tirage[torch]'") from error
    with as_model_error(name, folder, "does not fit the model"):
        return PeftModel.from_pretrained(module, str(folder), adapter_name=name).eval()


def add(tree: Any, name: str, folder: Path) -> Any:
    """The module tree with one more adapter; ModelError if the adapter does not fit."""
    with as_model_error(name, folder, "does not fit the model"):
        tree.load_adapter(str(folder), adapter_name=name)
    return tree.eval()


@contextmanager
def as_model_error(name: str, folder: Path, what: str) -> Iterator[None]:
    """Turns any exception into a ModelError that names the adapter."""
    try:
        yield
    except Exception as error:  # peft and the models report a mismatch in many ways
        raise ModelError(f"adapter {name!r} in {folder} {what}: {type(error).__name__}: {error}") from error


def try_adapter(tree: Any, name: str, folder: Path) -> tuple[Tensor, bool]:
    """Logits [2, V] of a short pass with the adapter, and whether each of its layers gets the rows separately.

    Layers of experts, for example, get the tokens of all rows in one list, where a row cannot have its own adapter.
    Raises ModelError when the model cannot run with the adapter.
    """
    from peft.tuners.lora import LoraLayer

    seen: list[tuple[int, ...]] = []
    layers: list[Any] = [part for part in tree.modules() if isinstance(part, LoraLayer)]

    def look(_: Any, args: Sequence[Tensor]) -> None:
        seen.append(tuple(args[0].shape[:2]))

    hooks = [layer.register_forward_pre_hook(look) for layer in layers]
    try:
        what = "cannot be run with the model; merge it into the model's folder, or leave it out"
        with as_model_error(name, folder, what):
            logits = try_rows(tree.get_base_model())
    finally:
        for hook in hooks:
            hook.remove()
    return logits, all(shape == (2, _TRIAL_TOKENS) for shape in seen)


@torch.inference_mode()
def try_rows(module: Any, *, rows: int = 2) -> Tensor:
    """The last logits [rows, V] of a short pass over equal rows of ordinary tokens."""
    count = module.get_input_embeddings().weight.shape[0]
    # Special and placeholder ids are usually at either end.
    ids = count // 3 + torch.arange(_TRIAL_TOKENS, device=module.device) % max(1, count // 3)
    return module(input_ids=ids.expand(rows, -1), use_cache=False).logits[:, -1]


def is_close(wanted: Tensor, got: Tensor) -> bool:
    """Whether the logits [B, V] of two passes agree up to rounding."""
    error = (wanted.float() - got.float()).abs().max() / wanted.float().abs().max().clamp_min(1e-30)
    return bool(error <= _TOLERANCE.get(wanted.dtype, _LOW_PRECISION))
