"""What the texts of one constraint share: a lexer that may fill up, and refusals that are found once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_guided import takes

from tirage import GrammarError, GuidedDecodingParams
from tirage.guided import BYTES, Compiler, compiler, llguidance_backend
from tirage.guided.trial_compile import LimitError
from tirage.server.routes.generate import grammar_refusal

WIDE = GuidedDecodingParams(regex="(.*[aeiou].{9}[xyz]|.*[bcd].{8}[klm]){1,5}END")
"""A pattern whose automaton grows with every text."""
LETTERS = list(b"aeioubcdxyzklm")


def written(made: Compiler, *, texts: int, tokens: int) -> list[bytes]:
    """The masks of some texts that are written side by side, with letters chosen by chance."""
    matchers = [made.compile(WIDE).matcher() for _ in range(texts)]
    chance, masks = np.random.default_rng(7), []
    for _ in range(tokens):
        for matcher in matchers:
            mask = np.zeros(BYTES.words, np.int32)
            matcher.fill_mask(mask)
            masks.append(mask.tobytes())
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            assert matcher.accept_allowed(int(chance.choice(np.intersect1d(allowed, LETTERS)))), matcher.error
    return masks


@pytest.mark.slow
def test_a_text_goes_on_when_others_have_filled_the_automaton_that_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = written(Compiler(BYTES), texts=16, tokens=60)
    monkeypatch.setattr(llguidance_backend, "BYTE_LEXER_STATES", 300)
    small = Compiler(BYTES)
    lexer: Any = small.compile(WIDE)._start.shared
    first = lexer.start
    assert written(small, texts=16, tokens=60) == alone
    assert lexer.start is not first
    assert written(small, texts=1, tokens=9) == written(Compiler(BYTES), texts=1, tokens=9)


@pytest.mark.slow
def test_copies_and_rollbacks_survive_a_new_automaton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llguidance_backend, "BYTE_LEXER_STATES", 300)
    made = Compiler(BYTES)
    matcher = made.compile(WIDE).matcher()
    for byte in b"hello":
        assert matcher.accept(byte)
    matcher.rollback(2)
    copied = matcher.fork()
    written(made, texts=16, tokens=40)
    for byte in b"p me a lot now x":
        assert matcher.accept_allowed(byte)
        assert copied.accept_allowed(byte)
        masks = [np.zeros(BYTES.words, np.int32) for _ in range(2)]
        matcher.fill_mask(masks[0])
        copied.fill_mask(masks[1])
        assert masks[0].any()
        assert (masks[0] == masks[1]).all()


@pytest.mark.slow
def test_a_text_that_rests_lets_a_full_automaton_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llguidance_backend, "BYTE_LEXER_STATES", 300)
    made = Compiler(BYTES)
    rests, masks = made.compile(WIDE).matcher(), [np.zeros(BYTES.words, np.int32) for _ in range(2)]
    cursor: Any = rests._cursor
    for byte in b"hello":
        assert rests.accept(byte)
    rests.fill_mask(masks[0])
    assert cursor._own is not None
    written(made, texts=4, tokens=40)
    assert cursor._own is None
    rests.fill_mask(masks[1])
    assert masks[0].any()
    assert (masks[0] == masks[1]).all()


@pytest.mark.slow
def test_what_texts_add_to_a_grammar_counts_in_the_cache() -> None:
    made = Compiler(BYTES, budget=500_000)
    made.compile(GuidedDecodingParams(regex="other"))
    before = made.compile(WIDE).nbytes
    assert made.stats()["grammars"] == 2
    written(made, texts=16, tokens=60)
    assert made.compile(WIDE).nbytes > before + 20_000
    assert made.stats()["grammars"] == 1


def counted(made: Compiler, monkeypatch: pytest.MonkeyPatch) -> list[GuidedDecodingParams]:
    """What a compiler really compiles, as it does."""
    compiled: list[GuidedDecodingParams] = []
    compile_once = made._compile

    def count(guided: GuidedDecodingParams) -> Any:
        compiled.append(guided)
        return compile_once(guided)

    monkeypatch.setattr(made, "_compile", count)
    return compiled


def refusal_of(made: Compiler, guided: GuidedDecodingParams) -> GrammarError:
    with pytest.raises(GrammarError) as raised:
        made.compile(guided)
    return raised.value


REFUSED = GuidedDecodingParams(json={"type": "integer", "minimum": 5, "maximum": 4})


def test_a_refusal_is_found_once_and_each_gets_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Compiler(BYTES)
    compiled = counted(made, monkeypatch)
    first, second = refusal_of(made, REFUSED), refusal_of(made, REFUSED)
    assert compiled == [REFUSED]
    assert (str(first), first.place, type(first)) == (str(second), second.place, type(second))
    assert first is not second


@pytest.mark.parametrize("timed_out", [True, False])
def test_only_a_refusal_that_the_clock_had_no_part_in_is_cached(
    timed_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, asked = Compiler(BYTES), list[int]()

    def refuse(_: GuidedDecodingParams) -> Any:
        asked.append(1)
        raise LimitError("grammar must compile within 2 s", timed_out=timed_out)

    monkeypatch.setattr(made, "_compile", refuse)
    errors = [refusal_of(made, REFUSED) for _ in range(3)]
    assert len(asked) == (3 if timed_out else 1)
    assert {type(error) for error in errors} == {LimitError}


@pytest.mark.parametrize(
    ("mode", "text", "name", "field"),
    [
        ("json", '{"type": "string"}', "schema", "json_schema"),
        ("regex", "(a{1,900}){1,900}", "regex", "regex"),
        ("grammar", 'start: "a"', "grammar", "ebnf"),
    ],
)
def test_a_constraint_beyond_its_limits_is_refused_by_its_own_name(
    mode: str, text: str, name: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_slow(*_: Any, **__: Any) -> Any:
        raise LimitError("grammar must compile within 2 s, got one that does not")

    monkeypatch.setattr(llguidance_backend.TRIALS, "compile", too_slow)
    # So that every schema is tried out first.
    monkeypatch.setattr("tirage.guided.small_constraints.SCHEMA_CHARS", 0)
    given: dict[str, Any] = {mode: text}
    error = refusal_of(Compiler(BYTES), GuidedDecodingParams(**given))
    assert str(error) == f"{name} must compile within 2 s, got one that does not"
    refusal = grammar_refusal(error)
    assert refusal.param == f"sampling_params.{field}"
    assert refusal.message.startswith(f"{field} must compile")


def test_a_failure_that_is_no_refusal_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Compiler(BYTES)
    monkeypatch.setattr(made, "_compile", lambda _: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(MemoryError):
        made.compile(REFUSED)
    monkeypatch.undo()
    assert refusal_of(made, REFUSED)


def test_cached_refusals_stay_within_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "REFUSAL_BYTES", 20_000)
    made = Compiler(BYTES)
    compiled = counted(made, monkeypatch)
    patterns = [GuidedDecodingParams(regex=f"({i}") for i in range(40)]
    for guided in patterns:
        refusal_of(made, guided)
    assert made._refused_bytes <= 20_000
    assert 5 < len(made._refused) < 40
    refusal_of(made, patterns[-1])
    assert len(compiled) == 40
    refusal_of(made, patterns[0])
    assert len(compiled) == 41


def test_threads_that_ask_together_are_refused_together(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Compiler(BYTES)
    compiled = counted(made, monkeypatch)
    errors: list[GrammarError] = []
    threads = [threading.Thread(target=lambda: errors.append(refusal_of(made, REFUSED))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(errors) == 4
    assert compiled == [REFUSED]


def test_a_lexer_that_gives_up_on_one_text_is_replaced_for_the_others() -> None:
    """llguidance keeps every expression that a text leads to, and none can be added once there are too many."""
    pattern = "^(?=.*[A-Z])(?=.*[a-z])(?=.*[0-9])(?=.*[^A-Za-z0-9]).{8,128}$"
    grammar = Compiler(BYTES).compile(GuidedDecodingParams(json={"type": "string", "pattern": pattern}))
    for hostile in ("x" * 305, "a" * 260, "A1" * 200):
        takes(grammar, f'"{hostile}"')
        matcher, mask = grammar.matcher(), np.zeros(8, np.int32)
        for byte in b'"Aa1!aaaaaaa"':
            matcher.fill_mask(mask)
            assert mask[byte // 32] >> byte % 32 & 1, (hostile[:5], chr(byte), matcher.error)
            assert matcher.accept_allowed(byte)
        assert matcher.complete


def test_each_thread_has_room_of_its_own_for_masks() -> None:
    rooms = llguidance_backend.Rooms()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(rooms.of, 100).result()
    mine = rooms.of(100)
    assert mine is rooms.of(100)
    assert mine is not rooms.of(101)
    assert mine.address != other.address
    assert mine.address == mine.mask.__array_interface__["data"][0]


def test_processor_time_is_asked_for_only_after_masks_that_took_long(monkeypatch: pytest.MonkeyPatch) -> None:
    took = {"wall": 0.0, "processor": 0.0}
    asked = dict.fromkeys(took, 0)

    def clock(name: str) -> float:
        asked[name] += 1
        # Asked for before and after each mask.
        return took[name] if asked[name] % 2 == 0 else 0.0

    clocks = SimpleNamespace(perf_counter=lambda: clock("wall"), thread_time=lambda: clock("processor"))
    monkeypatch.setattr(llguidance_backend, "time", clocks)
    matcher = SimpleNamespace(unsafe_compute_mask_ptr=lambda address, size: None)
    lexer = llguidance_backend.SharedLexer(lambda: matcher, states=1000)

    def compute(count: int) -> None:
        for _ in range(count):
            lexer.compute(matcher, 0, 32)

    compute(3)
    took["wall"] = 1.0
    compute(1)
    assert asked["processor"] == 0
    took["wall"] = 0.0
    # The machine was busy: so many later masks took no long processor time, and it is asked for no more.
    compute(100)
    assert asked["processor"] == 2 * llguidance_backend._WATCHED
    assert lexer.nbytes == 0
    took["wall"] = took["processor"] = 1.0
    compute(100)
    # One that takes long keeps the clock running for as many more.
    assert asked["processor"] == 2 * llguidance_backend._WATCHED + 2 * 99
    assert lexer.nbytes > 0
