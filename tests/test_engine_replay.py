"""Tokens that other engines drew, drawn again: against recorded draws, published numbers and engines' formulas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_draws import PROMPT, STEPS, SeededRequest, recorded, requests

import tirage
from tirage import ParamsError, SamplingParams
from tirage.cli import main
from tirage.engine_replay import NOT_REPLAYED, REPLAYED_ENGINES, EngineReplay
from tirage.engine_replay.engines import CandidateLogits, ReplaySettings
from tirage.engine_replay.generators import CudaPhilox, Mt19937, murmur3
from tirage.semantics import PRESETS

RECORDED = recorded()
ENGINES = sorted({engine for engine, _ in RECORDED})
TIED = "3000/"
"""Requests whose logits are equal in many places, where an engine's sort decides."""


def again(engine: str, request: SeededRequest, **more: Any) -> EngineReplay:
    name, _, option = engine.partition(", ")
    params = SamplingParams(seed=request.seed, **request.params)
    options = {"prompt_ids": PROMPT, **({option: True} if option else {}), **more}
    return tirage.replay_engine(request.logits(), params, engine=name, **options)


# --- recorded draws ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_the_tokens_that_an_engine_drew_are_drawn_again(engine: str) -> None:
    certain = total = 0
    for (name, which), (request, tokens) in RECORDED.items():
        if name != engine:
            continue
        found = again(engine, request, output_ids=tokens)
        same = found.token_ids == tokens
        assert (same | ~found.certain).all(), (which, found, tokens)
        assert found.difference == (None if same.all() else int(np.flatnonzero(~same)[0]))
        if not which.startswith(TIED):
            assert same.all()
            assert found.certain.all()
        certain, total = certain + int(found.certain.sum()), total + STEPS
    assert total == STEPS * len(list(requests()))
    assert certain > 0.6 * total


def test_a_doubtful_token_is_one_of_several_that_are_equal() -> None:
    request, tokens = RECORDED["sglang", "3000/2"]
    found = again("sglang", request, output_ids=tokens)
    logits = request.logits()
    for step in np.flatnonzero(found.token_ids != tokens):
        assert logits[step, found.token_ids[step]] == logits[step, tokens[step]]


@pytest.mark.parametrize(
    ("engine", "change"),
    [(name, "seed") for name in REPLAYED_ENGINES] + [("vllm", "prompt"), ("sglang", "prompt"), ("sglang", "beside")],
)
def test_what_a_draw_is_keyed_by_changes_it(engine: str, change: str) -> None:
    logits = np.random.default_rng(5).normal(size=(8, 500)).astype(np.float32)
    params, options = SamplingParams(seed=3), {"engine": engine, "prompt_ids": [1, 2]}
    first = tirage.replay_engine(logits, params, **options).token_ids.tolist()
    if change == "seed":
        params = SamplingParams(seed=4)
    options |= {"prompt_ids": [1, 2, 3]} if change == "prompt" else {}
    options |= {"batch_truncates": True} if change == "beside" else {}
    assert tirage.replay_engine(logits, params, **options).token_ids.tolist() != first


def test_penalties_follow_the_tokens_that_the_engine_recorded() -> None:
    logits = np.tile(np.linspace(0, 1, 6, dtype=np.float32), (12, 1))
    params = SamplingParams(seed=8, presence_penalty=2.0, frequency_penalty=2.0)
    alone = tirage.replay_engine(logits, params, engine="vllm-v1-torch")
    given = tirage.replay_engine(logits, params, engine="vllm-v1-torch", output_ids=alone.token_ids.tolist())
    other = tirage.replay_engine(logits, params, engine="vllm-v1-torch", output_ids=[5] * 12)
    plain = tirage.replay_engine(logits, SamplingParams(seed=8), engine="vllm-v1-torch")
    assert given.token_ids.tolist() == alone.token_ids.tolist()
    assert given.difference is None
    assert other.difference is not None
    assert other.token_ids.tolist() != alone.token_ids.tolist() != plain.token_ids.tolist()


@pytest.mark.parametrize("engine", REPLAYED_ENGINES)
def test_greedy_requests_are_replayed_too(engine: str) -> None:
    logits = np.random.default_rng(1).normal(size=(4, 40)).astype(np.float32)
    found = tirage.replay_engine(logits, SamplingParams(seed=1, temperature=0), engine=engine, prompt_ids=[1])
    assert found.token_ids.tolist() == logits.argmax(1).tolist()
    assert found.certain.all()


@pytest.mark.parametrize("engine", REPLAYED_ENGINES)
def test_the_steps_of_a_seed_follow_the_law(engine: str) -> None:
    logits = np.tile(np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32)), (150, 1))
    drawn = tirage.replay_engine(logits, SamplingParams(seed=11), engine=engine, prompt_ids=[1]).token_ids
    shares = np.bincount(drawn, minlength=4) / drawn.size
    assert np.abs(shares - [0.5, 0.3, 0.15, 0.05]).max() < 0.13


def test_a_planted_mistake_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tirage.engine_replay.engines._EQUAL", -1.0)
    wrong = 0
    for (engine, _), (request, tokens) in RECORDED.items():
        if engine == "sglang":
            found = again(engine, request, output_ids=tokens)
            wrong += int(((found.token_ids != tokens) & found.certain).sum())
    assert wrong > 0


# --- generators --------------------------------------------------------------------------------------------------

TORCH_CUDA = [0.3990, 0.5167, 0.0249, 0.9401, 0.9459, 0.7967, 0.4150, 0.8203, 0.2290, 0.9096]
TORCH_CUDA_SECOND = [0.9722, 0.7910, 0.4690, 0.3300, 0.3345, 0.3783, 0.7640, 0.6405, 0.1103, 0.3594]
"""`torch.manual_seed(0); torch.rand(10, device="cuda")`, twice, as pages about PyTorch print it."""


def test_cuda_numbers_are_those_that_pages_print() -> None:
    generator = CudaPhilox(0, size=10, threads=20480)
    assert np.round(generator.uniforms(), 4).tolist() == pytest.approx(TORCH_CUDA)
    assert np.round(generator.uniforms(), 4).tolist() == pytest.approx(TORCH_CUDA_SECOND)


def test_a_gpu_with_fewer_threads_fills_a_large_tensor_in_rounds() -> None:
    wide, narrow = (CudaPhilox(5, size=6000, threads=threads) for threads in (8192, 1024))
    first, rounds = wide.words(), narrow.words()
    assert rounds[:1024].tolist() == first[:1024].tolist()
    assert not (rounds[1024:] == first[1024:]).any()
    # A thread's second element is the second word of its block, and its fifth the first word of the next.
    alone = CudaPhilox(5, size=1024, threads=1024)
    assert alone.words().tolist() == rounds[:1024].tolist()
    assert alone.words().tolist() == rounds[4096:5120].tolist()


def test_torch_numbers_on_a_cpu_are_torchs_own() -> None:
    torch = pytest.importorskip("torch", reason="needs torch; pip install 'tirage[torch]' runs it")
    for seed in (0, 7, 2**31 + 3, 2**40 + 5):
        theirs = torch.Generator().manual_seed(seed)
        ours = Mt19937(seed)
        for size in (1, 20, 5000):
            expected = torch.empty(size).exponential_(generator=theirs).double().numpy()
            assert ours.exponentials(size).tolist() == expected.tolist()
            drawn = torch.randint(0, 2**31, (size,), generator=theirs).tolist()
            assert (ours.words64(size) % np.uint64(2**31)).tolist() == drawn


def test_the_words_are_those_of_the_standard() -> None:
    """The 10000th word of MT19937 with seed 5489 (C++ standard, [rand.predef])."""
    assert int(Mt19937(5489).words(10000)[-1]) == 4123659995


def test_the_hash_is_murmur3_of_sixteen_bytes() -> None:
    """By the definition of MurmurHash3_x86_32, one word after the other."""

    def hashed(words: list[int]) -> int:
        h = 0
        for k in words:
            k = k * 0xCC9E2D51 & 0xFFFFFFFF
            k = (k << 15 | k >> 17) & 0xFFFFFFFF
            h ^= k * 0x1B873593 & 0xFFFFFFFF
            h = (h << 13 | h >> 19) & 0xFFFFFFFF
            h = (h * 5 + 0xE6546B64) & 0xFFFFFFFF
        h ^= 16
        h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
        h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
        return h ^ h >> 16

    for seed, position in ((0, 0), (42, 17), (2**63 - 1, 2**20), (-5, 3)):
        found = murmur3(seed, position, np.array([0, 1, 127999], np.uint64))
        expected = [hashed([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, position, key]) for key in (0, 1, 127999)]
        assert found.tolist() == expected


def test_the_fast_logarithm_of_a_gpu_makes_close_races_doubtful() -> None:
    draw = REPLAYED_ENGINES["vllm-v1"].make(0, ReplaySettings(vocab_size=10, cuda_threads=20480))
    times = CudaPhilox(0, size=10, threads=20480).exponentials()
    all_kept = np.ones(10, np.bool_)
    level = np.log(times)
    level[4] += 2e-5
    row = CandidateLogits(ids=np.arange(10), logits=level, kept=all_kept, doubtful=~all_kept, position=0)
    close = draw.draw(row)
    assert close.token_id == 4
    assert not close.certain


# --- refusals ----------------------------------------------------------------------------------------------------

LOGITS = np.zeros((2, 8), np.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"engine": "vlm"}, "engine must be one of vllm, .*did you mean 'vllm'"),
        ({"engine": "flashinfer"}, "'flashinfer' cannot be replayed: its kernels draw by rejection"),
        ({"params": SamplingParams()}, "seed must be that of the request, got None: without one vllm draws from"),
        ({"params": SamplingParams(seed=1, n=2)}, "n must be 1, got 2: replay each sample alone"),
        ({"engine": "sglang", "params": SamplingParams(seed=1, min_p=0.1)}, "min_p must be 0.0 to replay sglang"),
        ({"engine": "llamacpp", "params": SamplingParams(seed=1, typical_p=0.5)}, "typical_p must be 1.0 to replay"),
        ({"prompt_ids": ()}, "prompt_ids must hold the prompt, got none: vllm keys a draw by its position"),
        ({"prompt_ids": [8]}, r"\[0, 8\), got 8"),
        ({"output_ids": [1]}, r"output_ids must be 2 integers, one for each row of logits, got int64 \[1\]"),
        ({"output_ids": [1, 9]}, r"output_ids must lie in \[0, 8\), got 9"),
        ({"engine": "vllm-v1", "cuda_threads": 5}, "cuda_threads must be an integer >= 256, got 5"),
        ({"engine": "vllm-v1", "logits": np.zeros((1, 30000), np.float32)}, "cuda_threads must be given for 30000"),
        ({"cuda_threads": 512}, "cuda_threads must be None for vllm, whose draws do not depend on them, got 512"),
        ({"batch_truncates": True}, "batch_truncates must be False for vllm, which draws each row for itself"),
        ({"logits": np.full((2, 8), np.nan, np.float32)}, "a row with status .* at step 0"),
    ],
)
def test_what_cannot_be_replayed_is_named(change: dict[str, Any], message: str) -> None:
    given = {"logits": LOGITS, "params": SamplingParams(seed=1), "engine": "vllm", "prompt_ids": [1], **change}
    with pytest.raises(ParamsError, match=message):
        tirage.replay_engine(given.pop("logits"), given.pop("params"), **given)


def test_every_engine_names_a_preset_and_a_dialect() -> None:
    from tirage.dialects import DIALECTS

    for each in REPLAYED_ENGINES.values():
        assert each.preset in PRESETS
        assert each.dialect in DIALECTS
    assert not REPLAYED_ENGINES.keys() & NOT_REPLAYED.keys()


# --- the command -------------------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(each) for each in arguments])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.fixture
def files(tmp_path: Path) -> list[object]:
    request, _ = RECORDED["sglang", "1000/3"]
    np.save(tmp_path / "logits.npy", request.logits())
    fields = {"sampling_params": {"sampling_seed": request.seed, **request.params}}
    (tmp_path / "request.json").write_text(json.dumps(fields["sampling_params"]))
    return ["replay", tmp_path / "request.json", "--engine", "sglang", "--logits", tmp_path / "logits.npy"]


def test_the_command_prints_the_tokens_of_an_engine(files: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    _, tokens = RECORDED["sglang", "1000/3"]
    prompt = ",".join(map(str, PROMPT))
    code, out, err = run(capsys, *files, "--prompt-ids", prompt)
    assert (code, json.loads(out)) == (0, tokens)
    assert "all 6 tokens are certain" in err
    code, out, err = run(capsys, *files, "--prompt-ids", prompt, "--output-ids", ",".join(map(str, tokens)))
    assert code == 0
    assert "the same 6 tokens" in err
    other = [*tokens[:2], (tokens[2] + 1) % 1000, *tokens[3:]]
    code, out, err = run(capsys, *files, "--prompt-ids", prompt, "--output-ids", ",".join(map(str, other)))
    assert code == 1
    assert f"differs first at step 2: the engine's token is {other[2]}, this one {tokens[2]}" in err


def test_draws_that_were_never_compared_with_a_gpu_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {name for name, each in REPLAYED_ENGINES.items() if each.unverified} == {"vllm-v1", "transformers-cuda"}
    assert all(bool(each.unverified) == each.cuda for each in REPLAYED_ENGINES.values())
    np.save(tmp_path / "logits.npy", np.random.default_rng(0).normal(size=(2, 50)).astype(np.float32))
    (tmp_path / "request.json").write_text('{"seed": 5, "temperature": 0.8}')
    options = ["replay", tmp_path / "request.json", "--logits", tmp_path / "logits.npy", "--engine"]
    _, _, err = run(capsys, *options, "vllm-v1")
    assert "vllm-v1 is not verified: torch's generator on CUDA" in err
    assert "not verified" not in run(capsys, *options, "vllm-v1-cpu")[2]


def test_the_command_names_what_is_missing(files: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    assert "prompt_ids must hold the prompt" in run(capsys, *files)[2]
    assert "--logits must be given with --engine" in run(capsys, *files[:4])[2]
    assert "--engine must be given with --logits" in run(capsys, *files[:2], *files[4:])[2]
    for without_effect in (["--model", "tiny"], ["--lora", "a=b"], ["--watermark-key", "5"], ["--dtype", "int8"]):
        code, out, err = run(capsys, *files, *without_effect)
        assert (code, out) == (2, "")
        assert f"{without_effect[0]} must be left out with --engine and --logits" in err
    for without_effect in (
        ["--prompt-ids", "1"],
        ["--output-ids", "1"],
        ["--cuda-threads", "512"],
        ["--batch-truncates"],
    ):
        code, out, err = run(capsys, *files[:2], *without_effect)
        assert (code, out) == (2, "")
        assert f"{without_effect[0]} must be left out for an answer of ours" in err


def test_the_command_names_an_engine_that_cannot_be_replayed(
    files: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, *files[:3], "mlx", *files[4:])
    assert code == 2
    assert "'mlx' cannot be replayed: one random state is shared" in err
