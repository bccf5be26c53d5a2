"""The NumPy Llama against an independent forward pass, and its loader against damaged folders."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tracemalloc
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file
from small_llama import CONFIG, random_tensors, reference_logits, write_folder
from threadpoolctl import threadpool_limits
from tries import tries

from tirage.errors import ModelError
from tirage.models import Model, bundled, find_folder, load
from tirage.models.rope import Rotations, inverse_frequencies

IDS = [3, 41, 7, 7, 12, 0, 49, 25]


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    return random_tensors(CONFIG)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, np.ndarray]) -> Model:
    return load(write_folder(tmp_path_factory.mktemp("llama"), tensors))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1, "head_dim": 10},
        {"rope_theta": 10000.0, "rms_norm_eps": 1e-2},
    ],
)
@pytest.mark.parametrize("bias", [False, True])
def test_logits_equal_a_float64_loop(tmp_path: Path, changes: dict[str, Any], bias: bool) -> None:
    config = {**CONFIG, **changes}
    tensors = random_tensors(config, bias=bias)
    model = load(write_folder(tmp_path / "m", tensors, **changes))
    logits, _ = model.prefill(IDS)
    np.testing.assert_allclose(logits, reference_logits(config, tensors, IDS), atol=2e-4, rtol=1e-4)


def test_rope_parameters_of_newer_configs_are_read(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    folder = write_folder(
        tmp_path / "m", tensors, rope_theta=None, rope_parameters={"rope_theta": 70.0, "rope_type": "default"}
    )
    expected = reference_logits({**CONFIG, "rope_theta": 70.0}, tensors, IDS)
    np.testing.assert_allclose(load(folder).prefill(IDS)[0], expected, atol=2e-4, rtol=1e-4)


def test_prefill_equals_a_shorter_prefill_and_decode_steps(model: Model) -> None:
    whole, _ = model.prefill(IDS)
    for start in (1, 3, len(IDS) - 1):
        logits, cache = model.prefill(IDS[:start])
        for token in IDS[start:]:
            logits = model.decode([token], [cache])[0]
        np.testing.assert_allclose(logits, whole, atol=1e-4)


def test_a_prompt_longer_than_a_chunk_equals_decode_steps(model: Model) -> None:
    ids = [int(i) for i in np.random.default_rng(1).integers(0, 50, 560)]
    whole, _ = model.prefill(ids)
    logits, cache = model.prefill(ids[:1])
    for token in ids[1:]:
        logits = model.decode([token], [cache])[0]
    np.testing.assert_allclose(logits, whole, atol=1e-4)


def test_score_gives_the_logits_of_every_prefix(model: Model) -> None:
    scores = model.score(IDS)
    assert np.array_equal(model.prefill(IDS)[0], scores[-1])
    for length in range(1, len(IDS)):
        np.testing.assert_allclose(scores[length - 1], model.prefill(IDS[:length])[0], atol=1e-4)


def test_a_row_has_the_same_bits_in_any_batch(model: Model) -> None:
    prompts = [IDS, [5], [9, 9, 9], list(range(40))]
    alone = []
    for ids in prompts:
        _, cache = model.prefill(ids)
        alone.append([model.decode([token], [cache])[0] for token in (1, 2, 3)])
    order = [2, 0, 3, 1]
    caches = [model.prefill(prompts[i])[1] for i in order]
    for step, token in enumerate((1, 2, 3)):
        together = model.decode([token] * 4, caches)
        for row, i in enumerate(order):
            assert np.array_equal(alone[i][step], together[row])


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_logits_do_not_depend_on_the_threads_of_blas(threads: int) -> None:
    model, ids = load(find_folder("tiny")), list(range(3, 60))
    with threadpool_limits(limits=threads, user_api="blas"):
        got = logits_of(model, ids)
    with threadpool_limits(limits=3, user_api="blas"):
        np.testing.assert_array_equal(logits_of(model, ids), got)


def logits_of(model: Model, ids: list[int]) -> np.ndarray:
    first, cache = model.prefill(ids)
    return np.stack([first, *(model.decode([token], [cache])[0] for token in ids)])


BLAS_THREADS = """
from concurrent.futures import ThreadPoolExecutor
import numpy
from threadpoolctl import threadpool_info, threadpool_limits
from tirage.models.blas import SingleThreadedBlas

def threads():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

held = SingleThreadedBlas()
with threadpool_limits(limits=3, user_api="blas"):
    with held:
        with held, ThreadPoolExecutor(1) as other:
            inner = other.submit(threads).result()
        outer = threads()
    print(inner, outer, threads())
"""


def test_blas_gets_its_threads_back_when_the_last_is_out() -> None:
    # In a process of its own: here, an engine that another test left running may change the numbers at any moment.
    done = subprocess.run([sys.executable, "-c", BLAS_THREADS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["{1}", "{1}", "{3}"]


def test_a_forked_cache_goes_its_own_way(model: Model) -> None:
    _, cache = model.prefill(IDS)
    copy = model.fork(cache)
    model.decode([1], [cache])
    expected = model.decode([2], [model.prefill(IDS)[1]])
    assert np.array_equal(expected, model.decode([2], [copy]))


@tries(30)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 4)), max_size=40))
def test_forks_share_their_past_and_change_no_bit(steps: list[tuple[int, int, int]]) -> None:
    model = small_model()
    read, caches = [IDS[:2]], [model.prefill(IDS[:2])[1]]
    model.decode([IDS[2]], caches)
    read[0].append(IDS[2])
    for which, token_id, act in steps:
        index = which % len(caches)
        held, ids = caches[index], read[index]
        if act == 0 and len(caches) < 6:
            caches.append(model.fork(held))
            read.append([*ids])
        elif act == 1 and len(ids) > 3:
            model.truncate(held, 2)
            del ids[-2:]
        elif act == 2 and len(caches) > 1:
            del caches[index], read[index]
        elif len(ids) < 24:
            ids.append(token_id)
            assert np.array_equal(model.decode([token_id], [held])[0], alone(tuple(ids)))


@cache
def small_model() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return load(write_folder(Path(folder) / "m", random_tensors(CONFIG)))


@cache
def alone(ids: tuple[int, ...]) -> np.ndarray:
    """The logits after ids, the last of them decoded one by one as samples do, in a cache that nobody shares."""
    logits, own = small_model().prefill(ids[:2])
    for token_id in ids[2:]:
        logits = small_model().decode([token_id], [own])[0]
    return logits


def test_forks_take_no_memory_before_they_write() -> None:
    model, ids = load(find_folder("tiny")), [5] * 428
    tracemalloc.start()
    _, cache = model.prefill(ids)
    before, _ = tracemalloc.get_traced_memory()
    forks = [model.fork(cache) for _ in range(127)]
    after, _ = tracemalloc.get_traced_memory()
    model.decode([7] * 128, [cache, *forks])
    written, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after < 1.05 * before
    # Each has room for 16 positions of its own, 24 cannot be told from the noise of the rest.
    assert written - after < 128 * 24 * 3072


def test_the_context_limit_is_an_error_that_says_so(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    model = load(write_folder(tmp_path / "m", tensors, max_position_embeddings=4))
    _, cache = model.prefill([1, 2, 3, 4])
    with pytest.raises(ModelError, match="context holds 4 tokens, got 5"):
        model.decode([1], [cache])


def test_rotations_do_not_depend_on_how_far_they_were_asked_for() -> None:
    steps = inverse_frequencies(8, 10000.0, {})
    piecewise, at_once = Rotations(steps), Rotations(steps)
    parts = [piecewise.between(i, i + 7)[0] for i in range(0, 700, 7)]
    assert np.array_equal(np.concatenate(parts), at_once.between(0, 700)[0])


def test_llama3_scaling_keeps_short_waves_and_slows_long_ones() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    plain = inverse_frequencies(128, 500000.0, {})
    scaled = inverse_frequencies(128, 500000.0, scaling)
    waves = 2 * np.pi / plain
    assert np.array_equal(plain[waves < 8192 / 4], scaled[waves < 8192 / 4])
    np.testing.assert_allclose(scaled[waves > 8192], plain[waves > 8192] / 8, rtol=1e-6)
    middle = (waves > 8192 / 4) & (waves < 8192)
    blend = (8192 / waves[middle] - 1) / 3
    np.testing.assert_allclose(scaled[middle], plain[middle] * ((1 - blend) / 8 + blend), rtol=1e-6)


def test_linear_scaling_divides_every_step() -> None:
    scaling = {"type": "linear", "factor": 2.0}
    expected = inverse_frequencies(8, 100.0, {}) / 2
    np.testing.assert_allclose(inverse_frequencies(8, 100.0, scaling), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_weights_are_widened_exactly(tmp_path: Path, tensors: dict[str, np.ndarray], dtype: Any) -> None:
    narrow = {name: array.astype(dtype) for name, array in tensors.items()}
    wide = {name: array.astype(np.float32) for name, array in narrow.items()}
    expected = load(write_folder(tmp_path / "wide", wide)).prefill(IDS)[0]
    assert np.array_equal(expected, load(write_folder(tmp_path / "narrow", narrow)).prefill(IDS)[0])


def test_int8_rows_are_multiplied_by_their_factors(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    stored, plain = {}, {}
    for name, array in tensors.items():
        if array.ndim == 1:
            stored[name] = plain[name] = array
            continue
        scale = np.abs(array).max(axis=1) / np.float32(127)
        stored[name] = np.round(array / scale[:, None]).astype(np.int8)
        stored[f"{name}_scale"] = scale
        plain[name] = stored[name].astype(np.float32) * scale[:, None]
    expected = load(write_folder(tmp_path / "plain", plain)).prefill(IDS)[0]
    assert np.array_equal(expected, load(write_folder(tmp_path / "int8", stored)).prefill(IDS)[0])


def test_shards_named_by_an_index_are_joined(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    folder = write_folder(tmp_path / "m", tensors)
    expected = load(folder).prefill(IDS)[0]
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, members in shards.items():
        save_file({name: tensors[name] for name in members}, folder / file)
    weight_map = {name: file for file, members in shards.items() for name in members}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert np.array_equal(expected, load(folder).prefill(IDS)[0])


@pytest.mark.parametrize(
    "name", ["../a.safetensors", "/etc/passwd", "x/y.safetensors", "..", "a\\b", "a\0b", 1, None, ["a"]]
)
def test_an_index_may_not_point_outside_its_folder(tmp_path: Path, tensors: dict[str, np.ndarray], name: Any) -> None:
    folder = write_folder(tmp_path / "m", tensors)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(ModelError, match="files of the same folder"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "qwen3"}, "model_type must be llama.*'qwen3'.*torch extra"),
        ({"model_type": None}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act must be silu, got 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "rope_type must be .*'yarn'.*torch extra"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor must be a positive number, got 0"),
        ({"rope_scaling": "linear"}, "rope_scaling must be an object"),
        ({"rope_theta": -1.0}, "rope_theta must be a positive number"),
        ({"rope_theta": 10**400}, "rope_theta must be a positive number, got an integer of 1329 bits"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps must be a positive number"),
        ({"rope_scaling": {"type": "linear", "factor": 10**400}}, "factor must be a positive number"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false, got 1"),
        ({"hidden_size": 0}, "hidden_size must be a positive integer, got 0"),
        ({"hidden_size": "24"}, "hidden_size must be a positive integer, got '24'"),
        ({"hidden_size": 10**12}, r"embed_tokens.weight' must have shape \[50, 1000000000000\]"),
        ({"vocab_size": 51}, r"must have shape \[51, 24\] by config.json, got \[50, 24\]"),
        ({"num_hidden_layers": 3}, "model.layers.2.* is missing"),
        ({"num_hidden_layers": 1}, "tensors are no part of a Llama, first 'model.layers.1"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be a positive integer"),
        ({"num_key_value_heads": 3}, "multiple of num_key_value_heads"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, tensors: dict[str, np.ndarray], changes: dict[str, Any], message: str
) -> None:
    folder = write_folder(tmp_path / "m", tensors, **changes)
    with pytest.raises(ModelError, match=message):
        load(folder)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '"x"', '{"a": \ud800}', "\x00"])
def test_a_config_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ModelError, match=r"config\.json"):
        load(tmp_path)


def header(size: int, body: bytes) -> bytes:
    return size.to_bytes(8, "little") + body


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 7,
        header(2**63, b"{}"),
        header(2**40, b"{}"),
        header(2, b"[]"),
        header(60, b'{"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}'.ljust(60)),
        b"PK\x03\x04 this is a zip of pickles",
    ],
)
def test_a_damaged_weight_file_is_refused(tmp_path: Path, tensors: dict[str, np.ndarray], content: bytes) -> None:
    folder = write_folder(tmp_path / "m", tensors)
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        load(folder)


def test_a_truncated_weight_file_is_refused(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    path = write_folder(tmp_path / "m", tensors) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"model\.safetensors is not a complete safetensors file"):
        load(path.parent)


def test_weights_of_another_dtype_are_refused_by_name(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    wrong = {**tensors, "model.norm.weight": tensors["model.norm.weight"].astype(np.float64)}
    with pytest.raises(ModelError, match=r"'model.norm.weight' must be one of .*, got F64"):
        load(write_folder(tmp_path / "m", wrong))


def test_int8_weights_without_factors_are_refused(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    stored = {**tensors, "lm_head.weight": tensors["lm_head.weight"].astype(np.int8)}
    with pytest.raises(ModelError, match=r"needs a tensor 'lm_head.weight_scale'"):
        load(write_folder(tmp_path / "m", stored))
    stored["lm_head.weight_scale"] = np.ones(3, np.float32)
    with pytest.raises(ModelError, match=r"must be float32 \[50\]"):
        load(write_folder(tmp_path / "m", stored))


def test_a_folder_of_pickled_weights_is_never_opened(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(ModelError, match="safetensors weights only"):
        load(tmp_path)


def test_an_unknown_name_lists_the_bundled_models() -> None:
    with pytest.raises(ModelError, match=r"bundled name .*tiny.* got 'tinny'; did you mean 'tiny'"):
        find_folder("tinny")


def test_every_bundled_model_is_a_folder_that_loads() -> None:
    for name in bundled():
        model = load(name)
        logits, _ = model.prefill([1, 2, 3])
        assert (model.vocab_size,) == logits.shape
        assert np.isfinite(logits).all()
