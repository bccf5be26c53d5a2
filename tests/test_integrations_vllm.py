"""The vLLM adapter by the shapes of vLLM's published interfaces: bookkeeping of both model runners, and refusals.

The engine itself runs in tests/engines/vllm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from text_requests import FIELDS, PROMPT, V, alone, logits_of

import tirage
from tirage import ParamsError, SamplingParams
from tirage.integrations.vllm import TirageLogitsProcessor, processor, versions
from tirage.integrations.vllm.requests import OWN_FIELDS, engine_config

EOS = 47


@dataclass(kw_only=True)
class Own:
    """What the adapter reads of vLLM's SamplingParams, with vLLM's defaults."""

    extra_args: Any = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    thinking_token_budget: int | None = None
    trace_decode_token_ids: list[int] | None = None
    seed: int | None = None
    n: int = 1
    eos_token_id: int | None = EOS
    stop_token_ids: list[int] = field(default_factory=list)
    watermarking: bool | None = None


def asking(fields: Any, **own: Any) -> Own:
    return Own(extra_args={"tirage": fields}, **own)


def config(**changes: Any) -> Any:
    model = SimpleNamespace(get_vocab_size=lambda: V)
    given = {"model_config": model, "parallel_config": SimpleNamespace(world_size=1), "instance_id": "abc"}
    return SimpleNamespace(**{**given, **changes})


# --- the V1 model runner -------------------------------------------------------------------------------------------


class Batch:
    """vLLM's persistent batch: places that are filled, vacated and condensed, and what the processor is told of it."""

    def __init__(self, made: TirageLogitsProcessor, *, ahead: bool = False) -> None:
        self.made, self.ahead = made, ahead
        self.places: list[int] = []
        self.outputs: dict[int, list[int]] = {}
        self.shown: dict[int, list[int]] = {}

    def change(self, gone: list[int], come: list[tuple[int, Own]], swap: tuple[int, int] | None = None) -> None:
        free = sorted(self.places.index(request) for request in gone)
        added, moved = [], []
        for request, own in come:
            at = free.pop(0) if free else len(self.places)
            self.places[at : at + 1] = [request]
            self.shown[request] = list(self.outputs.setdefault(request, []))
            added.append((at, own, PROMPT, self.shown[request]))
        removed = sorted(free, reverse=True)
        while free:
            hole, last = free.pop(0), len(self.places) - 1
            while last in free:
                free.remove(last)
                self.places.pop()
                last -= 1
            moved_id = self.places.pop()
            if last != hole:
                self.places[hole] = moved_id
                moved.append((last, hole, SimpleNamespace(name="UNIDIRECTIONAL")))
        if swap is not None and max(swap) < len(self.places):
            a, b = swap
            self.places[a], self.places[b] = self.places[b], self.places[a]
            moved.append((a, b, SimpleNamespace(name="SWAP")))
        self.made.update_state(SimpleNamespace(removed=removed, added=added, moved=moved))

    def step(self) -> None:
        logits = torch.from_numpy(np.stack([logits_of(r, self.outputs[r]) for r in self.places]))
        tokens = self.made.apply(logits).argmax(-1).tolist()
        for request, token in zip(self.places, tokens, strict=True):
            self.outputs[request].append(token)
            self.shown[request].append(-1 if self.ahead else token)


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_requests_that_come_go_and_change_places_draw_what_they_draw_alone(temperature: float, ahead: bool) -> None:
    batch = Batch(TirageLogitsProcessor(config(), "cpu", False), ahead=ahead)
    owns = {r: asking(fields, temperature=temperature) for r, fields in enumerate(FIELDS)}
    random = np.random.default_rng(1)
    for _ in range(60):
        gone = [r for r in batch.places if random.random() < 0.2]
        out = [r for r in owns if r not in batch.places and random.random() < 0.5]
        swap = (int(random.integers(3)), int(random.integers(3, 5)))
        batch.change(gone, [(r, owns[r]) for r in out], swap if random.random() < 0.3 else None)
        if batch.places:
            batch.step()
    assert min(map(len, batch.outputs.values())) > 10
    assert batch.outputs == {r: alone(r, len(output)) for r, output in batch.outputs.items()}


def test_rows_that_do_not_ask_keep_their_logits() -> None:
    made = TirageLogitsProcessor(config(), "cpu", False)
    added = [(0, Own(), PROMPT, []), (1, asking(FIELDS[0]), PROMPT, []), (2, Own(extra_args={"other": 1}), PROMPT, [])]
    made.update_state(SimpleNamespace(removed=[], added=added, moved=[]))
    logits = torch.from_numpy(np.stack([logits_of(r, []) for r in range(3)]))
    left = made.apply(logits.clone())
    assert torch.equal(left[[0, 2]], logits[[0, 2]])
    assert left[1].isfinite().sum() == 1
    made.update_state(SimpleNamespace(removed=[1], added=[], moved=[]))
    assert torch.equal(made.apply(logits.clone()), logits)


def test_a_greedy_row_has_the_drawn_token_above_all_others() -> None:
    made = TirageLogitsProcessor(config(), "cpu", False)
    made.update_state(
        SimpleNamespace(removed=[], added=[(0, asking({"seed": 1}, temperature=0.0), PROMPT, [])], moved=[])
    )
    logits = torch.full((1, V), 1e38)
    token = tirage.sample(logits.numpy().copy(), SamplingParams(seed=1), step=0).token_ids.tolist()
    assert made.apply(logits).argmax(-1).tolist() == token
    assert logits.sort(-1).values[0, -2] == torch.tensor(1e38)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("own", "end"), [({}, EOS), ({"eos_token_id": None, "stop_token_ids": [9]}, 9)])
def test_a_row_that_cannot_be_drawn_gets_its_end_token_from_then_on(
    broken: float, own: dict[str, Any], end: int, caplog: pytest.LogCaptureFixture
) -> None:
    made = TirageLogitsProcessor(config(), "cpu", False)
    owns = [asking(FIELDS[1], temperature=0.0), asking({"seed": 2}, temperature=0.0, **own)]
    outputs: list[list[int]] = [[], []]
    added = [(at, one, PROMPT, outputs[at]) for at, one in enumerate(owns)]
    made.update_state(SimpleNamespace(removed=[], added=added, moved=[]))
    for step in range(3):
        logits = torch.from_numpy(np.stack([logits_of(1, outputs[0]), np.full(V, broken if step == 1 else 0.0)]))
        tokens = made.apply(logits.float()).argmax(-1).tolist()
        for output, token in zip(outputs, tokens, strict=True):
            output.append(token)
    assert outputs[0] == alone(1, 3)
    assert outputs[1][1:] == [end, end]
    assert "ended by its end token: " in caplog.text


def test_nothing_raises_where_the_engine_would_die_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = TirageLogitsProcessor(config(), "cpu", False)
    added = [
        (0, asking(FIELDS[1], temperature=0.0), PROMPT, []),
        (1, asking({"seed": 1, "allowed_token_ids": [V]}), PROMPT, []),
        (2, asking(FIELDS[1]), None, []),
        (3, asking(FIELDS[1]), [V], []),
        (4, asking(FIELDS[1]), PROMPT, [-1]),
        (5, asking({"seed": 1, "logits_processors": [["nobody_has_this", {}]]}), PROMPT, []),
    ]
    made.update_state(SimpleNamespace(removed=[], added=added, moved=[]))
    tokens = made.apply(torch.from_numpy(np.stack([logits_of(1, [])] * 6))).argmax(-1).tolist()
    assert tokens == [*alone(1, 1), *[EOS] * 5]


def test_unseeded_requests_agree_in_all_workers_of_an_engine_and_differ_from_each_other() -> None:
    def tokens(world_size: int) -> list[int]:
        made = TirageLogitsProcessor(config(parallel_config=SimpleNamespace(world_size=world_size)), "cpu", False)
        added = [(at, asking({}), PROMPT, []) for at in range(40)]
        made.update_state(SimpleNamespace(removed=[], added=added, moved=[]))
        return made.apply(torch.zeros(40, V)).argmax(-1).tolist()

    assert tokens(2) == tokens(2)
    assert len({*tokens(2)}) > 10
    assert tokens(1) != tokens(1)


def test_of_two_in_one_engine_the_last_draws() -> None:
    one = config()
    made = [TirageLogitsProcessor(one, "cpu", False) for _ in range(2)]
    for each in made:
        each.update_state(SimpleNamespace(removed=[], added=[(0, asking(FIELDS[0]), PROMPT, [])], moved=[]))
    logits = torch.from_numpy(logits_of(0, [])[None])
    assert torch.equal(made[0].apply(logits.clone()), logits)
    assert made[1].apply(logits).argmax(-1).tolist() == alone(0, 1)


# --- the V2 model runner -------------------------------------------------------------------------------------------


class Slots:
    """The V2 model runner's state of all requests, and the context of a step."""

    def __init__(self, count: int = len(FIELDS), length: int = 200) -> None:
        self.tokens = torch.zeros(count, length, dtype=torch.int32)
        self.all_token_ids = SimpleNamespace(gpu=self.tokens)
        self.prompt_len = SimpleNamespace(np=np.zeros(count, np.int32))
        self.prefill_len = SimpleNamespace(np=np.zeros(count, np.int32))

    def put(self, slot: int, ids: list[int]) -> None:
        self.tokens[slot, : len(ids)] = torch.tensor(ids)
        self.prompt_len.np[slot], self.prefill_len.np[slot] = len(PROMPT), len(ids)

    def context(self, rows: list[tuple[int, int, int, int]]) -> Any:
        """One (slot, position, place among the request's rows, input id) for each row."""
        names = ("expanded_idx_mapping", "pos", "expanded_local_pos", "input_ids")
        slots = np.array(list(dict.fromkeys(slot for slot, *_ in rows)))
        return SimpleNamespace(**dict(zip(names, torch.tensor(rows).T, strict=True)), idx_mapping_np=slots)


def test_slots_draw_what_requests_draw_alone_whatever_is_resumed_and_reused() -> None:
    state = Slots()
    made = TirageLogitsProcessor(config(), state)
    outputs: dict[int, list[int]] = {r: [] for r in range(len(FIELDS))}
    random = np.random.default_rng(2)
    for _ in range(12):
        slots = dict(zip(outputs, random.permutation(len(FIELDS)).tolist(), strict=True))
        for r, slot in slots.items():
            state.put(slot, [*PROMPT, *outputs[r]])
            assert made.add_request(slot, asking(FIELDS[r], temperature=0.0))
        for _ in range(3):
            order = random.permutation(len(FIELDS)).tolist()
            rows = [(slots[r], len(PROMPT) + len(outputs[r]) - 1, 0, 0) for r in order]
            logits = torch.from_numpy(np.stack([logits_of(r, outputs[r]) for r in order]))
            for r, token in zip(order, made.apply(logits, state.context(rows)).argmax(-1).tolist(), strict=True):
                state.tokens[slots[r], len(PROMPT) + len(outputs[r])] = token
                outputs[r].append(token)
    assert outputs == {r: alone(r, 36) for r in outputs}


def test_rows_of_drafts_draw_what_plain_decoding_draws_after_them() -> None:
    state = Slots()
    made = TirageLogitsProcessor(config(), state)
    expected = {r: alone(r, 8) for r in range(len(FIELDS))}
    for r in expected:
        state.put(r, PROMPT)
        made.add_request(r, asking(FIELDS[r], temperature=0.0))
    for count in range(2):
        first = [(r, len(PROMPT) - 1 + count, 0, 0) for r in expected]
        made.apply(
            torch.from_numpy(np.stack([logits_of(r, expected[r][:count]) for r in expected])), state.context(first)
        )
        for r, output in expected.items():
            state.put(r, [*PROMPT, *output[: count + 1]])
    rows, logits = [], []
    for r, output in expected.items():
        for ahead in range(4):
            rows.append((r, len(PROMPT) + 1 + ahead, ahead, output[1 + ahead]))
            logits.append(logits_of(r, output[: 2 + ahead]))
    drawn = made.apply(torch.from_numpy(np.stack(logits)), state.context(rows)).argmax(-1).tolist()
    assert drawn == [token for output in expected.values() for token in output[2:6]]


def test_rows_that_vllm_will_throw_away_are_left_alone() -> None:
    state = Slots()
    made = TirageLogitsProcessor(config(), state)
    state.put(0, PROMPT)
    made.add_request(0, asking(FIELDS[1], temperature=0.0))
    assert not made.add_request(1, Own())
    logits = torch.from_numpy(np.stack([logits_of(0, [])] * 4))
    context = state.context([(0, 1, 0, 5), (1, 5, 0, 5), (0, 2, 0, 8), (0, 3, 1, -1)])
    left = made.apply(logits.clone(), context)
    assert torch.equal(left[[0, 1, 3]], logits[[0, 1, 3]])
    assert not torch.equal(left[2], logits[2])


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "unknown", lambda: "")


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (asking({"top_pp": 1}), "did you mean 'top_p'"),
        (asking('{"top_p": 2}'), "top_p must be"),
        (asking({"max_tokens": 3}), "give it to vLLM itself"),
        (asking(None), "fields of SamplingParams"),
        (asking({}, temperature=0.7), "temperature of vLLM must be 0 or 1"),
        (asking({"seed": 4}, seed=5), "seed of vLLM must be that of tirage or left out, got 5 and 4"),
        (asking({"seed": 4}, n=2), "n must be 1 where tirage alone is given a seed, got 2; give vLLM the same seed, 4"),
        *(
            (asking({}, **{name: value}), f"{name} of vLLM must be")
            for name, value in zip(OWN_FIELDS, [0.5, 7, 0.1, 0.2, 0.3, 1.1, 9, [1]], strict=True)
        ),
    ],
)
@pytest.mark.usefixtures("known")
def test_what_tirage_cannot_do_is_refused(own: Own, says: str) -> None:
    with pytest.raises(ParamsError, match=says):
        TirageLogitsProcessor.validate_params(own)


@pytest.mark.usefixtures("known")
def test_what_has_no_effect_is_let_through() -> None:
    for own in (
        Own(top_p=0.5, seed=3),
        asking({"seed": 4}, seed=4, n=8),
        asking({}, n=8),
        asking('{"top_p": 0.9}', temperature=0.0, top_k=-1),
    ):
        TirageLogitsProcessor.validate_params(own)


class Engine:
    """A caller that vLLM's InputProcessor stands for: its module is vLLM's, and it holds the configuration."""

    def __init__(self, **changes: Any) -> None:
        given = {"speculative_config": None, "use_v2_model_runner": False, "watermark_config": None, **changes}
        self.vllm_config = config(**given)

    def asked(self, own: Own) -> None:
        names = {"__name__": "vllm.v1.engine", "validate": TirageLogitsProcessor.validate_params}
        exec("def asked(self, own): validate(own)", names)
        names["asked"](self, own)  # type: ignore[operator]


@pytest.mark.usefixtures("known")
def test_what_the_engine_cannot_do_is_refused() -> None:
    with pytest.raises(ParamsError, match="the logits have 48 columns"):
        Engine().asked(asking({"allowed_token_ids": [V]}))
    with pytest.raises(ParamsError, match="speculative decoding must be off"):
        Engine(speculative_config=object()).asked(asking({}))
    with pytest.raises(ParamsError, match="watermarking must be False"):
        Engine(watermark_config=object()).asked(asking({}))
    Engine(speculative_config=object(), use_v2_model_runner=True).asked(asking({}))
    Engine(watermark_config=object()).asked(asking({}, watermarking=False))
    assert engine_config() is None


def interface(lost: str = "") -> Any:
    names = {"apply", "is_argmax_invariant", "update_state", "validate_params"} - {lost}
    return SimpleNamespace(
        LogitsProcessor=type("LogitsProcessor", (), dict.fromkeys(names)),
        BatchUpdate=SimpleNamespace(__dataclass_fields__=dict.fromkeys({"added", "moved", "removed"} - {lost})),
        MoveDirectionality=SimpleNamespace(SWAP=1, UNIDIRECTIONAL=0),
    )


@pytest.mark.parametrize(
    ("version", "lost", "says"),
    [
        ("0.32.0", "", ""),
        ("0.33.1+cpu", "", ""),
        ("0.99.0", "", "must run in vLLM 0.32 or 0.33, got 0.99.0 (its version is not one of these)"),
        ("0.33.0", "moved", "got 0.33.0 (vllm.v1.sample.logits_processor.interface lacks BatchUpdate.moved)"),
        ("0.33.0", "update_state", "interface lacks LogitsProcessor.update_state)"),
        ("", "", "got none (its version is not one of these"),
    ],
)
def test_a_vllm_that_is_not_known_is_named_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch, version: str, lost: str, says: str
) -> None:
    monkeypatch.setattr(versions, "_version", lambda: version)
    monkeypatch.setattr(versions, "_module", lambda name: interface(lost) if name == versions.V1 and version else None)
    versions.unknown.cache_clear()
    said = versions.unknown()
    versions.unknown.cache_clear()
    assert says in said
    assert bool(says) == bool(said)
