"""transformers' `generate` with tirage inside: the tokens are those of `tirage.sample` for the same logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import small_torch
import torch
from transformers import LogitsProcessor, LogitsProcessorList, TextStreamer

import tirage
from tirage import ParamsError, RowError, SamplingParams
from tirage.integrations.transformers import TirageLogitsProcessor, custom_generate

PROMPTS = [[5, 9, 14, 9, 5, 9, 14], [7, 7, 21]]
PARAMS = [
    SamplingParams(seed=3, top_p=0.9, repetition_penalty=1.3, temperature=1.4),
    SamplingParams(seed=4, min_p=0.02, no_repeat_ngram_size=2),
]


class Recorder(LogitsProcessor):
    """Keeps what the processor after it is given."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[list[int]], np.ndarray]] = []

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls.append((input_ids.tolist(), scores.numpy().copy()))
        return scores


@pytest.fixture(scope="module")
def model() -> Any:
    module = small_torch.build("llama", initializer_range=0.2)
    module.generation_config.eos_token_id = None
    module.generation_config.pad_token_id = 0
    return module


def padded(prompts: list[list[int]]) -> dict[str, torch.Tensor]:
    width = max(map(len, prompts))
    ids = [[0] * (width - len(prompt)) + prompt for prompt in prompts]
    return {
        "input_ids": torch.tensor(ids),
        "attention_mask": torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts]),
    }


def written(model: Any, processor: Any, inputs: dict[str, torch.Tensor], **options: Any) -> list[list[int]]:
    """What `generate` writes after each prompt, with the processor, or through `custom_generate` with parameters."""
    if isinstance(processor, TirageLogitsProcessor):
        asked: dict[str, Any] = {"logits_processor": LogitsProcessorList([processor])}
    else:
        asked = {"custom_generate": custom_generate, "params": processor}
    ids = model.generate(**inputs, **asked, **{"max_new_tokens": 12, **options})
    return ids[:, inputs["input_ids"].shape[1] :].tolist()


def redrawn(model: Any, prompt: list[int], params: SamplingParams, count: int = 12, sample_index: int = 0) -> list[int]:
    """The text of a plain loop over the model and `tirage.sample`."""
    output, state = list[int](), None
    for _ in range(count):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *output]])).logits[0, -1]
        draw = tirage.sample(logits, params, history=[(prompt, output)], sample_index=sample_index, state=state)
        output.append(int(draw.token_ids[0]))
        state = draw.states
    return output


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("row", [0, 1])
def test_a_prompt_alone(model: Any, row: int, do_sample: bool) -> None:
    inputs, alone = padded(PROMPTS[row : row + 1]), redrawn(model, PROMPTS[row], PARAMS[row])
    assert written(model, TirageLogitsProcessor(PARAMS[row]), inputs, do_sample=do_sample) == [alone]
    assert written(model, PARAMS[row], inputs, do_sample=do_sample) == [alone]


@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}, {"use_cache": False}], ids=str)
def test_padding_is_no_part_of_a_prompt(model: Any, options: dict[str, Any]) -> None:
    inputs = padded(PROMPTS)
    expected = [redrawn(model, prompt, params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
    processor = TirageLogitsProcessor(PARAMS, attention_mask=inputs["attention_mask"])
    assert written(model, processor, inputs, **options) == expected
    assert processor.seeds == [3, 4]
    assert written(model, PARAMS, inputs, **options) == expected


@pytest.mark.slow
def test_copies_are_the_samples_of_a_request(model: Any) -> None:
    inputs = padded(PROMPTS)
    expected = [redrawn(model, p, PARAMS[0], sample_index=i) for p in PROMPTS for i in range(2)]
    options = {"num_return_sequences": 2, "do_sample": True}
    processor = TirageLogitsProcessor(PARAMS[0], attention_mask=inputs["attention_mask"], num_return_sequences=2)
    assert written(model, processor, inputs, **options) == expected
    assert written(model, PARAMS[0], inputs, **options) == expected


@pytest.mark.slow
def test_rows_that_are_finished_are_padded_and_disturb_nobody(model: Any) -> None:
    inputs = padded(PROMPTS)
    long = [redrawn(model, prompt, params, 24) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
    eos = next(token for token in long[0][2:12] if token not in long[1])
    end = long[0].index(eos) + 1
    expected = [long[0][:end] + [0] * (24 - end), long[1]]
    processor = TirageLogitsProcessor(PARAMS, attention_mask=inputs["attention_mask"])
    assert written(model, processor, inputs, max_new_tokens=24, eos_token_id=eos) == expected
    assert written(model, PARAMS, inputs, max_new_tokens=24, eos_token_id=eos, do_sample=True) == expected


@pytest.mark.slow
@pytest.mark.parametrize("do_sample", [False, True])
def test_speculation_changes_no_token(model: Any, do_sample: bool) -> None:
    # A prompt that repeats itself, and a temperature at which the text does too.
    prompt, params = [5, 9, 14, 30] * 4, SamplingParams(seed=1, temperature=0.1, presence_penalty=0.1)
    inputs, plain = padded([prompt]), redrawn(model, prompt, params, 20)
    options = {"max_new_tokens": 20, "do_sample": do_sample}
    recorder = Recorder()
    lookup = LogitsProcessorList([recorder, TirageLogitsProcessor(params)])
    found = model.generate(**inputs, **options, logits_processor=lookup, prompt_lookup_num_tokens=4)
    assert found[0, len(prompt) :].tolist() == plain
    assert any((scores == 1.0).all() for _, scores in recorder.calls)
    assert written(model, params, inputs, **options, prompt_lookup_num_tokens=4) == [plain]
    assert written(model, TirageLogitsProcessor(params), inputs, **options, assistant_model=model) == [plain]


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=1, temperature=0.3, mirostat=2, mirostat_tau=1.0, mirostat_eta=0.5),
        SamplingParams(seed=2, temperature=0.3, mirostat=1, mirostat_tau=2.0),
        SamplingParams(seed=3, adaptive_target=0.3, adaptive_decay=0.6, min_p=0.02),
        SamplingParams(seed=4, watermark={"scheme": "kgw", "key": 15485863, "bias": 4.0}),
    ],
    ids=["mirostat 2", "mirostat 1", "adaptive-p", "watermark"],
)
def test_what_follows_from_every_token_survives_refused_drafts(model: Any, params: SamplingParams) -> None:
    prompt, options = [5, 9, 14, 30] * 4, {"max_new_tokens": 20}
    inputs, plain = padded([prompt]), redrawn(model, prompt, params, 20)
    for speculation in ({}, {"prompt_lookup_num_tokens": 4}, {"assistant_model": model}):
        assert written(model, TirageLogitsProcessor(params), inputs, **options, **speculation) == [plain]


def test_prompt_lookup_finds_what_it_may_propose(model: Any) -> None:
    # With a bias so strong that the model repeats one token, every candidate is right: fewer forward passes.
    params, passes = SamplingParams(logit_bias={9: 1000.0}, seed=1), []
    hook = model.register_forward_hook(lambda *_: passes.append(1))
    written(model, params, padded([[9] * 6]), prompt_lookup_num_tokens=4, max_new_tokens=20)
    hook.remove()
    assert len(passes) < 10


@pytest.mark.slow
def test_a_processor_serves_one_generation_after_the_other(model: Any) -> None:
    processor = TirageLogitsProcessor(PARAMS[0])
    for prompt in (PROMPTS[0], PROMPTS[1], PROMPTS[1], [*PROMPTS[1], *redrawn(model, PROMPTS[1], PARAMS[0]), 3]):
        assert written(model, processor, padded([prompt])) == [redrawn(model, prompt, PARAMS[0])]


def test_without_a_seed_every_generation_has_its_own(model: Any) -> None:
    processor = TirageLogitsProcessor({"temperature": 3.0})
    texts = [written(model, processor, padded(PROMPTS[:1]))[0] for _ in range(2)]
    again = SamplingParams(temperature=3.0, seed=processor.seeds[0])
    assert texts[0] != texts[1] == redrawn(model, PROMPTS[0], again)


def test_processors_of_generate_run_first_and_its_scores_show_the_token(model: Any) -> None:
    inputs, plain = padded(PROMPTS[:1]), redrawn(model, PROMPTS[0], PARAMS[0])
    out = model.generate(
        **inputs, max_new_tokens=4, custom_generate=custom_generate, params=PARAMS[0], suppress_tokens=[plain[0]],
        output_scores=True, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    tokens = out.sequences[0, inputs["input_ids"].shape[1] :].tolist()
    assert tokens[0] != plain[0]
    assert [scores.isfinite().nonzero().tolist() for scores in out.scores] == [[[0, token]] for token in tokens]
    assert all(logits.isfinite().all() for logits in out.logits)


def test_a_row_that_cannot_be_drawn_ends_alone(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(LogitsProcessor):
        def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
            return scores.index_fill(0, torch.tensor([0]), torch.nan) if input_ids.shape[1] == 9 else scores

    inputs = padded(PROMPTS)
    given = {"logits_processor": LogitsProcessorList([Broken()]), "eos_token_id": 199}
    ids = model.generate(**inputs, custom_generate=custom_generate, params=PARAMS, max_new_tokens=12, **given)
    ended, other = ids[:, 7:].tolist()
    assert ended == [*redrawn(model, PROMPTS[0], PARAMS[0], 2), 199, *[0] * 9]
    assert other == redrawn(model, PROMPTS[1], PARAMS[1])
    assert "row 0 cannot be drawn: non_finite_logits" in caplog.text
    processors = LogitsProcessorList([Broken(), TirageLogitsProcessor(PARAMS[0])])
    with pytest.raises(RowError, match="eos_token_id ends such a row alone"):
        model.generate(**padded(PROMPTS[:1]), logits_processor=processors, max_new_tokens=12)


def test_a_streamer_gets_every_token(model: Any) -> None:
    class Kept(TextStreamer):
        def __init__(self) -> None:
            self.ids: list[int] = []

        def put(self, value: torch.Tensor) -> None:
            self.ids += value.reshape(-1).tolist()

        def end(self) -> None:
            self.ids.append(-1)

    kept = Kept()
    text = written(model, TirageLogitsProcessor(PARAMS[0]), padded(PROMPTS[:1]), streamer=kept)[0]
    assert kept.ids == [*PROMPTS[0], *text, -1]


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"num_beams": 2}, {"num_beams": 2, "num_return_sequences": 2}], ids=str)
@pytest.mark.parametrize("with_mask", [False, True])
def test_beams_are_refused_by_name(model: Any, options: dict[str, Any], with_mask: bool) -> None:
    inputs = padded(PROMPTS)
    copies = options.get("num_return_sequences", 1)
    mask = inputs["attention_mask"] if with_mask else None
    plain = SamplingParams(seed=1)
    for processor in (plain, TirageLogitsProcessor(plain, attention_mask=mask, num_return_sequences=copies)):
        with pytest.raises(ParamsError, match="num_beams"):
            written(model, processor, inputs, **options)


def misread(model: Any) -> list[tuple[Callable[[], object], str]]:
    one, two = padded(PROMPTS[:1]), padded(PROMPTS)
    given, mask = PARAMS[0], two["attention_mask"]
    return [
        (lambda: written(model, TirageLogitsProcessor(given), two), "attention_mask must be given where repetition"),
        (lambda: written(model, TirageLogitsProcessor(SamplingParams()), padded([[1, 2]] * 2)), "prompts are equal"),
        (lambda: written(model, TirageLogitsProcessor(PARAMS), one), "rows must be 2 prompts times"),
        (lambda: written(model, TirageLogitsProcessor(given, attention_mask=mask), one), "rows must be 2 prompts"),
        (lambda: written(model, TirageLogitsProcessor(PARAMS, attention_mask=mask[:1]), one), "2 params"),
        (lambda: written(model, TirageLogitsProcessor(given, attention_mask=mask[:1, 1:]), one), r"must be \[1, 7\]"),
        (lambda: TirageLogitsProcessor({"top_pp": 1}), "did you mean 'top_p'"),
        (lambda: TirageLogitsProcessor({"max_tokens": 5}), "give it to generate itself"),
        (lambda: written(model, {"logit_bias": {"200": 1.0}}, one), "logit_bias"),
        (lambda: written(model, given, one, temperature=0.7, do_sample=True), "temperature must be left to params"),
        (lambda: written(model, given, one, top_p=0.7, do_sample=True), "top_p must be left to params"),
        (lambda: model.generate(**one, custom_generate=custom_generate, max_new_tokens=2), "params must be given"),
        (lambda: TirageLogitsProcessor(given)(torch.tensor([3]), torch.zeros(1, 200)), "continuous batching"),
    ]


@pytest.mark.parametrize("case", range(13))
def test_what_cannot_be_right_is_refused_by_name(model: Any, case: int) -> None:
    call, says = misread(model)[case]
    with pytest.raises(ParamsError, match=says):
        call()


def test_an_assistant_of_another_vocabulary_is_refused() -> None:
    processor = TirageLogitsProcessor(PARAMS[0])
    processor(torch.tensor([[1, 2]]), torch.zeros(1, 200))
    with pytest.raises(ParamsError, match="must be over 200 tokens"):
        processor(torch.tensor([[1, 2]]), torch.zeros(1, 300))


def test_a_token_that_another_processor_chose_is_noticed() -> None:
    processor = TirageLogitsProcessor(SamplingParams(seed=1, logit_bias={9: 100.0}))
    ids, scores = [[1, 2], [3, 4]], torch.zeros(2, 200)
    processor(torch.tensor(ids), scores)
    processor(torch.tensor([[*ids[0], 9], [*ids[1], 11]]), scores)
    with pytest.raises(ParamsError, match="row 1 must take the token that was drawn"):
        processor(torch.tensor([[*ids[0], 9, 9], [*ids[1], 11, 12]]), scores)


def test_a_release_that_decodes_otherwise_is_refused_with_both_versions(model: Any) -> None:
    class Other:
        generation_config = model.generation_config

    with pytest.raises(ParamsError, match=r"transformers must be 5\.23 .* got \d"):
        custom_generate(Other(), *[None] * 3, generation_config=model.generation_config, params=PARAMS[0])  # pyright: ignore
