"""Grammars and matchers: masks are exact, state can be taken back, compilations are shared and bounded."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from guided_cases import COMPILER, EOS, GRAMMARS, PATTERNS, SCHEMAS, VOCABULARY, compiled, small_vocabulary, spelled
from numpy.typing import NDArray
from small_tokenizers import Letters, byte_level_tokenizer, fallback_tokenizer
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders
from tokenizers.models import WordPiece

import tirage
from tirage import GrammarError, GuidedDecodingParams, SamplingParams
from tirage.guided import BYTES, Compiler, Grammar, Matcher, Vocabulary
from tirage.guided.compiler import MEASURED
from tirage.guided.llguidance_backend import SharedLexer
from tirage.text import wrap_tokenizer

CASES: list[dict[str, Any]] = [
    *({"json": schema} for schema in SCHEMAS),
    *({"regex": pattern} for pattern in PATTERNS),
    *({"grammar": cfg.gbnf} for cfg in GRAMMARS),
    {"json": {}},
    {"json_object": True},
    {"choice": ["yes", "no", "yesterday", "é日本"]},
    {"grammar": 'start: "(" start ")" | /[0-9]+/'},
]


def mask_of(matcher: Matcher) -> NDArray[np.int32]:
    mask = np.full(matcher.vocabulary.words, -1, np.int32)
    matcher.fill_mask(mask)
    return mask


def allowed(matcher: Matcher) -> list[int]:
    bits = np.unpackbits(mask_of(matcher).view(np.uint8), bitorder="little")
    return np.flatnonzero(bits).tolist()


def takes(grammar: Grammar, text: str | bytes) -> bool:
    """Whether a whole text, byte by byte, satisfies a grammar over BYTES."""
    matcher = grammar.matcher()
    data = text.encode() if isinstance(text, str) else text
    return all(matcher.accept(byte) for byte in data) and matcher.complete


BYTE_COMPILER = Compiler(BYTES)


def over_bytes(**guided: Any) -> Grammar:
    return BYTE_COMPILER.compile(GuidedDecodingParams(**guided))


def compare(guided: dict[str, Any], walks: int, steps: int, seed: int) -> int:
    """Walks at random; at each place the mask must be the tokens whose bytes a matcher over bytes accepts."""
    rng = np.random.default_rng(seed)
    grammar, by_byte = compiled(**guided), over_bytes(**guided)
    pairs = 0
    for _ in range(walks):
        matcher, reference = grammar.matcher([EOS]), by_byte.matcher()
        for _ in range(steps):
            expected = [i for i, token in enumerate(VOCABULARY.tokens) if token and accepts_all(reference, token)]
            expected += [EOS] if reference.complete else []
            assert expected == allowed(matcher)
            pairs += VOCABULARY.width
            content = [i for i in expected if i != EOS]
            if not content:
                break
            token = int(rng.choice(content))
            assert matcher.accept(token)
            assert all(reference.accept(byte) for byte in VOCABULARY.tokens[token])
    return pairs


def accepts_all(reference: Matcher, token: bytes) -> bool:
    taken = 0
    for byte in token:
        if not reference.accept(byte):
            break
        taken += 1
    reference.rollback(taken)
    return taken == len(token)


# --- masks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guided", CASES, ids=lambda case: str(case)[:60])
def test_a_mask_is_exactly_the_tokens_that_the_matcher_accepts(guided: dict[str, Any]) -> None:
    assert compare(guided, walks=2, steps=8, seed=1) > VOCABULARY.width


@pytest.mark.slow
def test_masks_are_exact_on_a_million_pairs() -> None:
    pairs, seed = 0, 100
    while pairs < 1_000_000:
        seed += 1
        pairs += compare(CASES[seed % len(CASES)], walks=1, steps=40, seed=seed)
    assert pairs >= 1_000_000


def test_the_tokens_of_one_text_are_not_cut_for_it() -> None:
    # All of it is certain; a tokenizer would cut it into hello, world, hello.
    matcher = compiled(regex="helloworldhello!").matcher()
    assert {VOCABULARY.tokens[i] for i in allowed(matcher)} == {b"h", b"he", b"hel", b"hello"}


def test_padding_and_special_tokens_are_never_allowed() -> None:
    matcher = compiled(regex=r"(?s:.)+").matcher()
    never = [i for i, token in enumerate(VOCABULARY.tokens) if not token]
    assert set(allowed(matcher)).isdisjoint(never)
    assert not any(matcher.accept(i) for i in (*never, -1, VOCABULARY.width, 10**6))


@pytest.mark.parametrize("padding", [1, 2, 3, 17, 31, 32, 33, 34, 35])
def test_bits_beyond_the_vocabulary_are_0_at_every_width(padding: int) -> None:
    vocabulary = small_vocabulary(padding)
    matcher = Compiler(vocabulary).compile(GuidedDecodingParams(regex="(?s:.)+")).matcher([vocabulary.width - 2])
    bits = np.unpackbits(mask_of(matcher).view(np.uint8), bitorder="little")
    assert not bits[vocabulary.width :].any()
    assert bits[ord("a")] == 1


def test_an_end_token_is_allowed_exactly_when_the_text_is_complete() -> None:
    matcher = compiled(regex="ab?").matcher([EOS])
    assert EOS not in allowed(matcher)
    assert not matcher.accept(EOS)
    assert matcher.accept(ord("a"))
    assert {ord("b"), EOS} == set(allowed(matcher))
    assert matcher.accept(EOS)
    assert (matcher.complete, matcher.done, allowed(matcher), matcher.accept(ord("b"))) == (True, True, [], False)


def test_an_end_token_that_could_be_text_is_not_text() -> None:
    matcher = compiled(regex="a+").matcher([ord("a")])
    assert VOCABULARY.tokens[allowed(matcher)[0]] != b"a"
    assert not matcher.accept(ord("a"))


def test_without_end_tokens_a_text_is_done_when_nothing_may_follow() -> None:
    matcher = compiled(choice=["no", "nothing"]).matcher()
    for letter in b"no":
        matcher.accept(letter)
    assert (matcher.complete, matcher.done) == (True, False)
    for letter in b"thing":
        matcher.accept(letter)
    assert (matcher.complete, matcher.done, allowed(matcher)) == (True, True, [])


# --- state -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guided", CASES[::4], ids=lambda case: str(case)[:60])
def test_rollback_returns_to_the_same_masks(guided: dict[str, Any]) -> None:
    rng = np.random.default_rng(5)
    matcher = compiled(**guided).matcher([EOS])
    masks, tokens = [mask_of(matcher)], []
    while len(tokens) < 10 and (choices := allowed(matcher)):
        tokens.append(int(rng.choice(choices)))
        assert matcher.accept(tokens[-1])
        masks.append(mask_of(matcher))
    for back in range(len(tokens) + 1):
        matcher.rollback(back)
        assert np.array_equal(mask_of(matcher), masks[len(tokens) - back])
        assert all(matcher.accept(token) for token in tokens[len(tokens) - back :])
    with pytest.raises(ValueError, match="count must be in"):
        matcher.rollback(len(tokens) + 1)


def test_a_token_that_is_refused_changes_nothing() -> None:
    matcher = compiled(json={"type": "integer"}).matcher([EOS])
    matcher.accept(ord("1"))
    before = mask_of(matcher)
    assert not matcher.accept(ord("x"))
    assert np.array_equal(mask_of(matcher), before)
    assert matcher.error == ""


def test_matchers_of_one_grammar_do_not_know_of_each_other() -> None:
    grammar = compiled(regex="ab|cd")
    first, second = grammar.matcher(), grammar.matcher()
    first.accept(ord("a"))
    fork = first.fork()
    fork.accept(ord("b"))
    assert [VOCABULARY.tokens[i] for i in allowed(first)] == [b"b"]
    assert fork.done
    assert {VOCABULARY.tokens[i] for i in allowed(second)} == {b"a", b"c", b"ab"}


def test_forced_tokens_are_those_that_every_draw_would_give() -> None:
    vocabulary = Vocabulary((b"a", b"b", b"c", b"bc"))
    compiler = Compiler(vocabulary)
    matcher = compiler.compile(GuidedDecodingParams(regex="aac(a|b)")).matcher()
    assert matcher.forced() == (0, 0, 2)
    assert matcher.forced(2) == (0, 0)
    assert matcher.accept(0), "asking changes nothing"
    # b, c and bc all go on: nothing is certain although the text is.
    assert compiler.compile(GuidedDecodingParams(regex="abc")).matcher().forced() == (0,)


def test_a_draw_follows_the_law_given_the_mask() -> None:
    rng = np.random.default_rng(7)
    params = SamplingParams(temperature=0.9)
    matcher = compiled(json=SCHEMAS[0]).matcher([EOS])
    for letter in b'{"name":':
        logits = (rng.normal(size=(1, VOCABULARY.width)) * 3).astype(np.float32)
        mask = mask_of(matcher)[None]
        free, bound = tirage.law(logits, params)[0], tirage.law(logits, params, mask=mask)[0]
        inside = np.isin(np.arange(VOCABULARY.width), allowed(matcher))
        assert not bound[~inside].any()
        # Weights are rounded relative to the largest, which the mask may have removed: hence a little slack here,
        # and none against the law of logits that are -inf outside the mask.
        assert bound[inside] == pytest.approx(free[inside] / free[inside].sum(), abs=1e-7)
        assert np.array_equal(bound, tirage.law(np.where(inside, logits, -np.inf).astype(np.float32), params)[0])
        assert int(tirage.sample(logits, params, mask=mask).token_ids[0]) in allowed(matcher)
        matcher.accept(letter)


def test_penalties_and_bias_do_not_revive_a_masked_token() -> None:
    matcher = compiled(choice=["yes"]).matcher([EOS])
    history = [([1], [ord("n")] * 3)]
    for semantics in ("canonical", "vllm", "sglang", "llamacpp"):
        params = SamplingParams(
            logit_bias={ord("n"): 100.0}, frequency_penalty=-2.0, seed=3, min_tokens=4, semantics=semantics
        )
        logits = np.zeros((1, VOCABULARY.width), np.float32)
        logits[0, ord("n")] = 50
        drawn = tirage.sample(logits, params, history=history, mask=mask_of(matcher)[None])
        assert int(drawn.token_ids[0]) in allowed(matcher), semantics


# --- compiling ---------------------------------------------------------------------------------------------------


def test_a_grammar_is_compiled_once_however_many_ask() -> None:
    compiler = Compiler(VOCABULARY)
    found: list[Grammar] = []
    guided = [GuidedDecodingParams(json=dict(SCHEMAS[0])) for _ in range(16)]
    threads = [threading.Thread(target=lambda g=g: found.append(compiler.compile(g))) for g in guided]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(grammar) for grammar in found}) == 1
    assert compiler.compile(GuidedDecodingParams(regex="a")) is not found[0]
    stats = compiler.stats()
    assert (stats["grammars"], stats["compiled"]) == (2, 2)
    assert stats["bytes"] == compiler.nbytes > 0


@pytest.mark.slow
def test_those_who_wait_for_a_grammar_share_its_refusal() -> None:
    compiler, asked = (
        Compiler(BYTES),
        GuidedDecodingParams(grammar='start: %json {"multipleOf": 1000003, "minimum": 0}'),
    )
    refused: list[GrammarError] = []

    def ask() -> None:
        try:
            compiler.compile(asked)
        except GrammarError as error:
            refused.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 8
    # Each trial takes a second; one of its own for every thread would give eight errors.
    assert len({id(error) for error in refused}) <= 2
    assert compiler.stats() == {"grammars": 0, "bytes": 0, "compiled": 0, "hits": 0}


def test_the_grammars_kept_stay_within_their_budget() -> None:
    compiler = Compiler(VOCABULARY, budget=1 << 20)
    first = compiler.compile(GuidedDecodingParams(regex="a0"))
    for i in range(12):
        last = compiler.compile(GuidedDecodingParams(regex=f"a{i}"))
        assert compiler.nbytes <= 1 << 20
    assert compiler.compile(GuidedDecodingParams(regex="a11")) is last
    assert compiler.compile(GuidedDecodingParams(regex="a0")) is not first
    assert first.matcher().accept(ord("a"))
    stats = compiler.stats()
    assert (stats["compiled"], stats["hits"]) == (13, 2)
    assert stats["bytes"] == sum(grammar.nbytes for grammar in compiler._cached.values())


def test_a_grammar_that_has_grown_when_it_is_found_takes_the_place_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(VOCABULARY, budget=1 << 20)
    found = [GuidedDecodingParams(regex=f"a{i}") for i in range(4)]
    grown, *others = [compiler.compile(guided) for guided in found]
    assert compiler.stats()["grammars"] == 4
    lexer = type(grown._start.shared)
    grows = lexer.nbytes.fget
    monkeypatch.setattr(
        lexer, "nbytes", property(lambda self: grows(self) + (self is grown._start.shared) * ((1 << 20) - 400_000))
    )
    assert compiler.compile(found[0]) is grown
    # The least recently used ones went, until the grown one and the rest fit.
    assert [compiler._cached.get(guided) is None for guided in found] == [False, True, True, False]
    assert compiler._cached_bytes == compiler.nbytes <= 1 << 20
    assert compiler.compile(found[3]) is others[2]


@pytest.mark.parametrize("others", [MEASURED - 1, MEASURED, 2 * MEASURED + 1])
def test_a_grammar_that_grows_unasked_is_counted_in_its_turn(others: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(VOCABULARY)
    grown = compiler.compile(GuidedDecodingParams(regex="a"))
    for i in range(others):
        compiler.compile(GuidedDecodingParams(regex=f"a{i}"))
    lexer = type(grown._start.shared)
    grows = lexer.nbytes.fget
    monkeypatch.setattr(lexer, "nbytes", property(lambda self: grows(self) + (self is grown._start.shared) * 1_000_000))
    assert compiler._cached_bytes == compiler.nbytes - 1_000_000
    turns = others // MEASURED + 2
    for i in range(turns):
        compiler.compile(GuidedDecodingParams(regex=f"b{i}"))
    assert compiler._cached_bytes == compiler.nbytes


def test_threads_share_one_grammar_and_each_follows_it_alone() -> None:
    grammar = compiled(json=SCHEMAS[0])

    def walk(seed: int) -> list[int]:
        matcher, rng, tokens = grammar.matcher([EOS]), np.random.default_rng(seed), []
        while not matcher.done and len(tokens) < 60:
            tokens.append(int(rng.choice(allowed(matcher))))
            assert matcher.accept(tokens[-1])
        return tokens

    expected = [walk(seed) for seed in range(24)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(walk, range(24))) == expected


def test_what_cannot_be_compiled_is_not_kept() -> None:
    compiler = Compiler(VOCABULARY)
    for _ in range(2):
        with pytest.raises(GrammarError, match="regex"):
            compiler.compile(GuidedDecodingParams(regex="("))
    assert compiler.nbytes == 0


def test_a_grammar_that_the_vocabulary_cannot_write_is_refused() -> None:
    compiler = Compiler(Vocabulary((b"a", b"b", b"")))
    assert compiler.compile(GuidedDecodingParams(regex="[a-z]+")).matcher().fork().accept(0)
    with pytest.raises(GrammarError, match="some text that this model can write"):
        compiler.compile(GuidedDecodingParams(regex="x+"))


@pytest.mark.parametrize(("schema", "looks"), [({}, 0), ({"type": "array"}, 0), ({"type": "boolean"}, 1)])
@pytest.mark.parametrize("brackets", [(b"{", b"["), (b"{}", b"[]", b"{", b"["), ()])
def test_a_schema_is_known_to_have_a_text_by_an_opening_bracket_or_a_mask(
    schema: dict[str, Any], looks: int, brackets: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    masks: list[int] = []
    compute = SharedLexer.compute

    def counted(self: SharedLexer, matcher: object, address: int, size: int) -> None:
        masks.append(size)
        compute(self, matcher, address, size)

    monkeypatch.setattr(SharedLexer, "compute", counted)
    grammar = Compiler(Vocabulary((*brackets, b"true", b"[1]", b""))).compile(GuidedDecodingParams(json=schema))
    assert len(masks) == (looks if brackets else 1)
    assert allowed(grammar.matcher())
    with pytest.raises(GrammarError, match="some text that this model can write"):
        Compiler(Vocabulary((*brackets, b""))).compile(GuidedDecodingParams(json={"type": "string"}))


def test_more_options_mean_another_grammar() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}
    spaced, compact = over_bytes(json=schema), over_bytes(json=schema, disable_any_whitespace=True)
    tabbed = over_bytes(json=schema, whitespace_pattern=r"\t?")
    closed = over_bytes(json=schema, disable_additional_properties=True)
    texts = ['{"a":null}', '{ "a" : null }', '{\t"a":\tnull}', '{"a":null,"b":1}', '{"a":' + " " * 9 + "null}"]
    assert [takes(spaced, t) for t in texts] == [True, True, True, True, False]
    assert [takes(compact, t) for t in texts] == [True, False, False, True, False]
    assert [takes(tabbed, t) for t in texts] == [True, False, True, True, False]
    assert [takes(closed, t) for t in texts] == [True, True, True, False, False]


@pytest.mark.parametrize("pattern", ["x", "[ -~]", r"\s*", ".", r"[^a]", "(", " {2"])
def test_whitespace_that_could_be_anything_else_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarError):
        over_bytes(json={}, whitespace_pattern=pattern)


# --- vocabularies ------------------------------------------------------------------------------------------------


def test_a_vocabulary_spells_what_the_tokenizer_does() -> None:
    vocabulary = Vocabulary.of(byte_level_tokenizer(), 300)
    assert vocabulary.tokens[:256] == tuple(bytes([b]) for b in range(256))
    assert vocabulary.tokens[256] == b" a"
    assert list(vocabulary.special.values()) == [b"<|end|>"]
    assert vocabulary.width == 300
    pieces = Vocabulary.of(fallback_tokenizer(), 269)
    assert (pieces.tokens[3 + 0xC3], pieces.tokens[260]) == (b"\xc3", b" a")
    assert set(pieces.special) == {0, 1, 2}
    assert Vocabulary.of(wrap_tokenizer(Letters()), 300).tokens[ord("é")] == "é".encode()


def test_a_tokenizer_that_does_not_spell_its_text_in_order_is_refused() -> None:
    raw = FastTokenizer(WordPiece({"[UNK]": 0, "hello": 1, "wor": 2, "##ld": 3}, unk_token="[UNK]"))
    raw.decoder = decoders.WordPiece()
    with pytest.raises(GrammarError, match="one after the other"):
        Vocabulary.of(wrap_tokenizer(raw), 4)


def test_bytes_are_covered_by_few_tokens() -> None:
    found = VOCABULARY.cover("hello日本x".encode())
    assert found is not None
    assert [VOCABULARY.tokens[i] for i in found] == [b"hello", "日本".encode(), b"x"]
    assert spelled(VOCABULARY.cover(b"hello", frozenset([found[0]])) or []) == b"hello"
    assert Vocabulary((b"a",)).cover(b"ab") is None


# --- backends ----------------------------------------------------------------------------------------------------

XGRAMMAR: list[dict[str, Any]] = [
    {"json": SCHEMAS[13]},
    {"json": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", None]}},
              "required": ["a"], "additionalProperties": False}},
    {"regex": r"[^a]é\n\d?\."},
    {"choice": ["yes", "no"]},
    {"grammar": GRAMMARS[2].gbnf},
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("guided", XGRAMMAR, ids=lambda case: str(case)[:60])
def test_xgrammar_allows_what_it_accepts_and_ends_where_llguidance_does(guided: dict[str, Any]) -> None:
    other = compiled(**guided, backend="xgrammar", disable_fallback=True)
    assert other.backend == "xgrammar"
    rng = np.random.default_rng(3)
    for _ in range(4):
        matcher, reference = other.matcher([EOS]), compiled(**guided).matcher([EOS])
        for _ in range(30):
            tokens = allowed(matcher)
            assert tokens == [i for i in range(VOCABULARY.width) if matcher.fork().accept(i)]
            token = int(rng.choice([i for i in tokens if reference.fork().accept(i)]))
            assert matcher.accept(token)
            assert reference.accept(token)
            assert matcher.complete == reference.complete
            if matcher.done:
                break


def test_xgrammar_gives_way_to_llguidance_unless_that_is_forbidden() -> None:
    guided = {"json": {"type": "string", "minLength": 2}, "backend": "xgrammar"}
    assert compiled(**guided).backend == "llguidance"
    with pytest.raises(GrammarError, match="#/minLength is a keyword that xgrammar does not enforce"):
        compiled(**guided, disable_fallback=True)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "required": ["z"]},
        {"type": "string", "enum": ["a", 1]},
        {"type": "string", "anyOf": [{"maxLength": 1}]},
        {"type": "array", "items": {"allOf": [{}]}},
        {"type": ["object", "null"], "properties": {}, "additionalProperties": False},
    ],
)
def test_xgrammar_is_not_asked_for_what_it_would_ignore(schema: dict[str, Any]) -> None:
    with pytest.raises(GrammarError, match=r"xgrammar|must name properties"):
        compiled(json=schema, backend="xgrammar", disable_fallback=True)


def test_a_backend_that_is_not_installed_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "xgrammar", None)
    compiler = Compiler(BYTES)
    with pytest.raises(GrammarError, match=r"pip install 'tirage\[xgrammar\]'"):
        compiler.compile(GuidedDecodingParams(regex="a", backend="xgrammar", disable_fallback=True))
    assert compiler.compile(GuidedDecodingParams(regex="a", backend="xgrammar")).backend == "llguidance"


def test_no_backend_named_means_llguidance() -> None:
    assert compiled(regex="ab").backend == "llguidance"
    assert compiled(regex="ab", backend="auto").backend == "llguidance"
    assert COMPILER.vocabulary is VOCABULARY
