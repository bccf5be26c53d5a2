"""The Llama under JAX, and any TransformerLike, as a model of `LLM` and of Gemma's door."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_llama import CONFIG, random_tensors, reference_logits, write_folder
from small_transformers import LetterTokenizer, SmallTransformer, reply

from tirage import LLM, BeamSearchParams, ModelError, ParamsError, SamplingParams
from tirage.compat.gemma import RandomSampling, Sampler
from tirage.models import load
from tirage.models.llama import LlamaNumpy
from tirage.models.llama_jax import LlamaTransformer, open_jax, transformer_of
from tirage.models.transformer import TransformerModel

pytestmark = pytest.mark.usefixtures("plain_programs")
PROMPTS = ["Once upon a time", "The dog", "One day, a little girl named"]
GREEDY = SamplingParams(temperature=0, max_tokens=24)


@pytest.fixture(scope="module")
def tiny() -> LLM:
    return LLM("tiny")


@pytest.fixture(scope="module")
def on_jax() -> LLM:
    return LLM("tiny", backend="jax")


@pytest.fixture(scope="module")
def little(tmp_path_factory: pytest.TempPathFactory) -> LlamaNumpy:
    """Two layers of random weights."""
    return load(write_folder(tmp_path_factory.mktemp("llama"), random_tensors(CONFIG)))


@pytest.fixture(scope="module")
def model(little: LlamaNumpy) -> TransformerModel:
    return open_jax(little)


IDS = [int(i) for i in np.random.default_rng(0).integers(0, 50, 300)]

# Logits.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "bias"),
    [
        pytest.param({}, False, marks=pytest.mark.slow),
        ({"tie_word_embeddings": True, "num_key_value_heads": 4}, True),
        pytest.param({"rope_scaling": {"rope_type": "linear", "factor": 3.0}}, False, marks=pytest.mark.exhaustive),
    ],
)
def test_logits_equal_a_float64_loop(tmp_path: Path, changes: dict[str, Any], bias: bool) -> None:
    config = {**CONFIG, **changes}
    tensors = random_tensors(config, 3, bias=bias)
    numpy_model = load(write_folder(tmp_path / "model", tensors, **config))
    model = open_jax(numpy_model)
    assert model.prefill(IDS[:9])[0] == pytest.approx(numpy_model.prefill(IDS[:9])[0], abs=2e-4)
    if "rope_scaling" not in changes:
        assert model.prefill(IDS[:9])[0] == pytest.approx(reference_logits(config, tensors, IDS[:9]), abs=2e-4)


@pytest.mark.slow
def test_the_bundled_models_logits_are_the_numpy_ones_closely(tiny: LLM, on_jax: LLM) -> None:
    ids = [int(i) for i in np.random.default_rng(1).integers(0, 1536, 70)]
    assert np.abs(tiny.model.score(ids) - on_jax.model.score(ids)).max() < 1e-3


@pytest.mark.slow
def test_a_prompt_read_in_pieces_gives_the_bits_of_prefill(model: TransformerModel) -> None:
    whole, _ = model.prefill(IDS)
    _, cache = model.extend(IDS[:256], None)
    pieces, cache = model.extend(IDS[256:], cache)
    assert whole.tobytes() == pieces.tobytes()
    assert np.abs(model.score(IDS)[-1] - whole).max() < 1e-3
    assert cache.slots == 300


@pytest.mark.slow
def test_decode_steps_equal_longer_prompts_and_rows_do_not_depend_on_neighbours(model: TransformerModel) -> None:
    caches = [model.prefill(IDS[:length])[1] for length in (3, 20)]
    alone = model.decode([7], [model.prefill(IDS[:3])[1]])
    together = model.decode([7, 8], caches)
    assert alone[0].tobytes() == together[0].tobytes()
    assert np.abs(together[1] - model.prefill([*IDS[:20], 8])[0]).max() < 1e-3


def test_a_forked_cache_goes_its_own_way(model: TransformerModel) -> None:
    _, cache = model.prefill(IDS[:5])
    twin = model.fork(cache)
    model.decode([1], [twin])
    assert model.decode([2], [cache])[0].tobytes() == model.decode([2], [model.prefill(IDS[:5])[1]])[0].tobytes()


@pytest.mark.slow
def test_a_cache_of_another_layout_is_never_padded() -> None:
    class Bare(SmallTransformer):
        """Keeps its cache as a tuple, so that nobody can mend where it writes."""

        def init_cache(self, **options: Any) -> Any:
            return tuple(super().init_cache(**options)["layer_0"].values())

        def apply(self, variables: Any, tokens: Any, *, cache: Any, **options: Any) -> Any:
            named = {"layer_0": dict(zip(("k", "v", "end_index"), cache, strict=True))}
            out = super().apply(variables, tokens, cache=named, **options)
            return SimpleNamespace(logits=out.logits, cache=tuple(out.cache["layer_0"][n] for n in named["layer_0"]))

    bare, known = (
        TransformerModel(kind("jax"), kind("jax").params(), max_length=64) for kind in (Bare, SmallTransformer)
    )
    assert np.abs(bare.prefill(IDS[:21])[0] - known.prefill(IDS[:21])[0]).max() < 1e-3


# LLM.


@pytest.mark.slow
def test_an_llm_over_the_model_under_jax_writes_what_the_numpy_one_writes(
    tiny: LLM, on_jax: LLM, caplog: pytest.LogCaptureFixture
) -> None:
    expected = [completion.token_ids for completion in tiny.generate(PROMPTS, GREEDY)]
    assert expected == [completion.token_ids for completion in on_jax.generate(PROMPTS, GREEDY)]
    with caplog.at_level(logging.INFO, "tirage"):
        LLM("tiny", backend="jax")
    assert "tiny runs on JAX, for at most 512 tokens" in caplog.text


@pytest.mark.slow
def test_an_llm_takes_a_jax_model_of_the_users_own(tiny: LLM) -> None:
    transformer, params = transformer_of(tiny.model)
    model = TransformerModel(transformer, params, max_length=512)
    llm = LLM(model, tokenizer=tiny.tokenizer)
    assert llm.generate(PROMPTS[0], GREEDY)[0].token_ids == tiny.generate(PROMPTS[0], GREEDY)[0].token_ids
    assert "".join(delta.text for delta in llm.stream(PROMPTS[1], GREEDY)) == tiny.generate(PROMPTS[1], GREEDY)[0].text
    drawn = SamplingParams(seed=3, max_tokens=8, n=2, logprobs=1)
    alone = [llm.generate(prompt, drawn)[0] for prompt in PROMPTS]
    together = llm.generate(PROMPTS, drawn)
    assert [[s.token_ids for s in c.samples] for c in alone] == [[s.token_ids for s in c.samples] for c in together]
    beams = BeamSearchParams(beam_width=3, max_tokens=6)
    assert [s.token_ids for s in llm.beam_search("The", beams)[0].samples] == [
        s.token_ids for s in tiny.beam_search("The", beams)[0].samples
    ]


@pytest.mark.slow
def test_a_transformer_of_gemmas_shape_is_a_model() -> None:
    transformer = SmallTransformer("jax")
    llm = LLM(TransformerModel(transformer, transformer.params(), max_length=64), tokenizer=LetterTokenizer())
    sampler = Sampler(model=transformer, params=transformer.params(), tokenizer=LetterTokenizer(), cache_length=64)
    ids = [2, *map(ord, "hello")]
    sampling = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, logit_bias={3: -100.0})
    assert list(llm.generate([ids], sampling)[0].token_ids) == reply(sampler, ids, max_new_tokens=9)
    full = llm.generate([ids], sampling.replace(max_tokens=None))[0]
    assert (len(full.token_ids), full.finish_reason, full.stop and full.stop.kind) == (58, "length", "context")


# Gemma's door.


def sampler_of(llm: LLM, **options: Any) -> Sampler:
    transformer, params = transformer_of(llm.model)
    defaults: dict[str, Any] = {
        "cache_length": 512,
        "max_out_length": 24,
        "tokenizer": llm.tokenizer,
        "pad_length": (16, 64),
    }
    return Sampler(model=transformer, params=params, **{**defaults, **options})


@pytest.mark.slow
@pytest.mark.parametrize("pad_length", [(16, 64), pytest.param(None, marks=pytest.mark.exhaustive)])
def test_gemmas_sampler_over_the_model_under_jax_writes_what_the_llm_writes(tiny: LLM, pad_length: Any) -> None:
    expected = [list(completion.token_ids) for completion in tiny.generate(PROMPTS, GREEDY)]
    assert reply(sampler_of(tiny, pad_length=pad_length), PROMPTS) == expected


@pytest.mark.slow
def test_turns_of_the_model_under_jax_equal_one_prompt(tiny: LLM) -> None:
    sampler = sampler_of(tiny)
    state = sampler.sample(["Once upon a time", "The dog"], return_state=True, max_new_tokens=9).state
    turn = sampler.sample([" The dog", " It was"], last_state=state, return_state=True, max_new_tokens=9)
    whole = [list(row.token_ids[: -len(row.output_ids)]) for row in turn.state.rows]
    assert [list(row.output_ids) for row in turn.state.rows] == reply(sampler, whole, max_new_tokens=9)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.exhaustive)])
def test_narrow_weights_give_about_the_same_logits_in_float32(little: LlamaNumpy, dtype: str) -> None:
    transformer, params = transformer_of(little)
    narrow = {**jax.tree.map(lambda leaf: leaf.astype(dtype), params), "rope": params["rope"]}
    model = TransformerModel(transformer, narrow, max_length=64)
    logits, cache = model.prefill(IDS[:3])
    assert cache.arrays["layer_0"]["k"].dtype == dtype
    assert logits.dtype == np.float32
    assert np.abs(logits - little.prefill(IDS[:3])[0]).max() < 0.1


@pytest.mark.slow
def test_the_transformer_compiles_once_for_equal_samplers_and_any_parameters(tiny: LLM) -> None:
    traced: list[Any] = []

    class Counted(LlamaTransformer):
        def apply(self, variables: Any, tokens: Any, **options: Any) -> Any:
            traced.append(tokens.shape)
            return super().apply(variables, tokens, **options)

    transformer, params = transformer_of(tiny.model)
    counted = Counted(transformer.llama)
    for temperature, prompt in ((0.5, "Once"), (0.7, "The dog and the cat"), (0.9, "A")):
        sampler = Sampler(model=counted, params=params, tokenizer=tiny.tokenizer, cache_length=64, pad_length=16)
        sampler.sample(prompt, sampling=RandomSampling(temperature=temperature), max_new_tokens=3, rng=1)
    # One program fills the cache with a padded prompt, one makes a step.
    assert sorted(traced) == [(1, 1), (1, 16)]


@pytest.mark.slow
def test_a_transformer_that_cannot_be_a_key_is_compiled_once_as_well() -> None:
    traced: list[Any] = []

    class Unhashable(SmallTransformer):
        __hash__ = None  # type: ignore[assignment]

        def apply(self, variables: Any, tokens: Any, **options: Any) -> Any:
            traced.append(tokens.shape)
            return super().apply(variables, tokens, **options)

    one, other = Unhashable("jax"), Unhashable("jax")
    for model in (one, one, other):
        sampler = Sampler(model=model, params=model.params(), tokenizer=LetterTokenizer(), cache_length=16)
        for _ in range(2):
            assert len(reply(sampler, [5], max_new_tokens=2)) == 2
    assert traced == [(1, 1), (1, 1), (1, 1), (1, 1)]


@pytest.mark.slow
def test_a_sharding_is_what_the_cache_gets(little: LlamaNumpy) -> None:
    transformer, params = transformer_of(little)
    sampler = Sampler(model=transformer, params=params, tokenizer=LetterTokenizer(), cache_length=32, max_out_length=8)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("heads",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, None, "heads"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    layer = {"k": split, "v": split, "end_index": whole}
    tree = {f"layer_{index}": layer for index in range(2)}
    for sharding in (tree, whole):
        state = sampler.sample(IDS[:4], sharding=sharding, return_state=True, max_new_tokens=1).state
        expected = split if sharding is tree else whole
        assert state.cache["layer_0"]["k"].sharding.is_equivalent_to(expected, 4)
    assert reply(sampler, IDS[:4], sharding=tree) == reply(sampler, IDS[:4])


SHARDED = """
import sys
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from small_transformers import LetterTokenizer
from tirage import ParamsError
from tirage.compat.gemma import Sampler
from tirage.models import load
from tirage.models.llama_jax import transformer_of
transformer, params = transformer_of(load(sys.argv[1]))
tokenizer = LetterTokenizer()
sampler = Sampler(model=transformer, params=params, tokenizer=tokenizer, cache_length=32, max_out_length=6)
prompts = [[4, 9, 7, 3], [11, 5], [8], [6, 21, 40, 30, 2]]
alone = sampler.sample(prompts, return_state=True)
second = sampler.sample([[12, 13]] * 4, last_state=alone.state, return_state=True)
mesh = Mesh(jax.devices(), ("devices",))
split, whole = NamedSharding(mesh, P(None, None, "devices")), NamedSharding(mesh, P())
heads = {f"layer_{i}": {"k": split, "v": split, "end_index": whole} for i in range(2)}
first_dim = NamedSharding(mesh, P("devices"))
for sharding in (first_dim, whole, heads):
    out = sampler.sample(prompts, sharding=sharding, return_state=True)
    again = sampler.sample([[12, 13]] * 4, sharding=sharding, last_state=out.state, return_state=True)
    leaves = [state.cache["layer_1"]["v"] for state in (out.state, again.state)]
    same = (out.tokens == alone.tokens).all(), (again.tokens == second.tokens).all()
    print([leaf.sharding.shard_shape(leaf.shape) for leaf in leaves], *same)
try:
    sampler.sample(prompts[:3], sharding=first_dim)
except ParamsError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_sharding_spreads_prompts_or_heads_over_devices_and_changes_no_token(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "llama", random_tensors(CONFIG))
    # Compiled twelve times, for which XLA need not take pains.
    flags = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
    environment = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{flags} --xla_llvm_disable_expensive_passes=true"}
    tests = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    said = run(SHARDED, str(folder), PYTHONPATH=tests, **environment).splitlines()
    spread = [(2, 32, 2, 6), (4, 32, 2, 6), (4, 32, 1, 6)]
    assert said[:3] == [f"{[shape, shape]} True True" for shape in spread]
    # Older releases of JAX write PartitionSpec.
    refused = r"sharding must split the prompts into equal parts, got P(artitionSpec)?\('devices',\) with 2 parts for 3"
    assert re.match(refused, said[3])


def run(code: str, *arguments: str, **environment: str) -> str:
    """What a program of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


# Mistakes.


@pytest.mark.slow
def test_without_jax_the_error_names_the_extra_and_the_rest_works() -> None:
    code = (
        "import sys; sys.modules['jax'] = None\n"
        "from tirage import LLM, ModelError\n"
        "from tirage.compat.gemma import ChatSampler, RandomSampling, Sampler\n"
        "llm = LLM('tiny')\n"
        "s = Sampler(model=llm.model, tokenizer=llm.tokenizer, sampling=RandomSampling())\n"
        "assert s.sample(['a', 'b'], max_new_tokens=2, rng=3) == s.sample(['a', 'b'], max_new_tokens=2, rng=3)\n"
        "try: LLM('tiny', backend='jax')\n"
        "except ModelError as error: print(error)\n"
    )
    assert run(code).strip() == "backend 'jax' needs jax, jax is missing: pip install 'tirage[jax]'"


@pytest.mark.slow
def test_what_the_model_under_jax_cannot_do_is_refused(tiny: LLM, model: TransformerModel, tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match="dtype must not be given on the JAX backend"):
        LLM("tiny", backend="jax", dtype="bfloat16")
    with pytest.raises(ModelError, match=r"the model's context holds 600 tokens, got 601"):
        model.prefill([1] * 601)
    with pytest.raises(ModelError, match="at least one token id"):
        model.prefill([])
    with pytest.raises(ModelError, match=r"model must be a NumPy Llama, as LLM.'tiny'.*, got TransformerModel"):
        transformer_of(model)
    transformer, params = transformer_of(tiny.model)
    one = jnp.zeros((1, 1), int)
    with pytest.raises(ParamsError, match="images must be None with a Llama"):
        transformer.apply({"params": params}, one, images=one, cache={}, positions=one, attention_mask=one)
    write_folder(tmp_path / "other", random_tensors(CONFIG), model_type="gemma3")
    with pytest.raises(ModelError, match="model_type must be llama for the NumPy model, got 'gemma3'"):
        LLM(tmp_path / "other", backend="jax")


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (3, {}, "model must be a TransformerLike with apply, got int"),
        (SmallTransformer(), {"params": {}}, "params must be a nested mapping with at least one array"),
        (SmallTransformer(), {"max_length": 0}, "max_length must be an integer >= 1, got 0"),
        (SmallTransformer(), {"max_length": True}, "max_length must be an integer >= 1, got True"),
    ],
)
def test_other_objects_are_no_transformers(model: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ModelError, ParamsError), match=message):
        TransformerModel(model, **{"params": SmallTransformer().params(), "max_length": 8, **options})
