"""Coverage-guided fuzzing of everything that reads what strangers send, with atheris.

`python -m chaos.fuzz TARGET [options of libFuzzer]` runs one target until it is stopped or finds a crash: an error that
is not one of tirage's own, a wrong answer, or an input that takes longer than libFuzzer's `-timeout`. atheris is no
part of the development environment; CONTRIBUTING.md says how it is installed beside it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import atheris

with atheris.instrument_imports(include=["tirage", "jinja2"]):
    from jinja2 import TemplateError

    from tirage import LLM, GuidedDecodingParams, TirageError
    from tirage.guided.compiler import Compiler
    from tirage.guided.gbnf import read_gbnf
    from tirage.guided.gbnf_to_lark import to_lark
    from tirage.guided.json_schema import read_schema
    from tirage.guided.regular.python_regex import read_pattern
    from tirage.guided.vocabulary import Vocabulary
    from tirage.patterns import PatternError, compile_pattern, search
    from tirage.server.errors import Refusal
    from tirage.server.media import MediaLoader, format_of, read_item, read_part
    from tirage.server.media_workers import DecodeError
    from tirage.server.options import Options
    from tirage.server.routes.explain import read_question
    from tirage.server.routes.messages_request import read_messages_request
    from tirage.server.routes.openai_request import CHAT, COMPLETIONS, read_request
    from tirage.server.routes.responses_request import read_responses
    from tirage.server.routes.sglang_request import read_body
    from tirage.server.strict_json import parse_object
    from tirage.text import open_detokenizer
    from tirage.text.stops import StopChecker
    from tirage.text.template import Template
    from tirage.text.template_worker import Sandbox

MEANT = (TirageError, Refusal, PatternError, DecodeError)
"""What a reader may raise for what it does not take."""
OPTIONS = Options()
BYTE_TOKENS = range(3, 259)
"""The ids of the bundled vocabulary that stand for single bytes."""


@cache
def tiny() -> LLM:
    """The bundled model, for readers that ask it for its vocabulary and context."""
    return LLM("tiny")


def text_from(data: bytes) -> str:
    """A text from bytes: any UTF-8, with replacement characters for the rest."""
    return data.decode("utf-8", "replace")


READERS: tuple[Callable[[dict[str, Any]], object], ...] = (
    lambda body: read_body(body, OPTIONS, lenient=False),
    lambda body: read_request(COMPLETIONS, body, OPTIONS, tiny(), lenient=False),
    lambda body: read_request(CHAT, body, OPTIONS, tiny(), lenient=False),
    lambda body: read_responses(body, OPTIONS, tiny(), lenient=False),
    lambda body: read_messages_request(body, OPTIONS, tiny(), lenient=False),
    lambda body: read_question(body, OPTIONS),
    lambda body: read_body(body, OPTIONS, lenient=True),
)
"""What reads the body of each route; the first byte of an input chooses."""


def request_parser(data: bytes) -> None:
    """A body of each route, from its bytes to parameters."""
    READERS[int.from_bytes(data[:1]) % len(READERS)](parse_object(data[1:]))


@cache
def compiler() -> Compiler:
    """A compiler for the bundled model's vocabulary."""
    model = tiny()
    return Compiler(Vocabulary.of(model.tokenizer, model.model.vocab_size))


def schema_compiler(data: bytes) -> None:
    """A schema, read; a small one compiled too."""
    text = text_from(data)
    read_schema(text)
    if len(text) < 120:
        compiler().compile(GuidedDecodingParams(json=text))


def regex(data: bytes) -> None:
    """A pattern in both of our readers; what the one for stops finds is a part of the text."""
    head, _, text = text_from(data).partition("\n")
    read_pattern(head)
    found = search(compile_pattern(head), text[:200])
    assert found is None or 0 <= found[0] <= found[1] <= len(text)


def gbnf(data: bytes) -> None:
    """A grammar, read and written for llguidance."""
    to_lark(read_gbnf(text_from(data)))


def template(data: bytes) -> None:
    """A hostile folder's chat template, rendered in its child; read here too, where coverage is seen."""
    with contextlib.suppress(TemplateError):
        Sandbox().parse(text_from(data))
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    Template(text_from(data)).render(messages=messages, add_generation_prompt=True, bos_token="<s>")


@cache
def loader() -> MediaLoader:
    """A loader whose child processes are never started: only what is read before them is fuzzed."""
    return MediaLoader(OPTIONS, sampling_rate=16000)


def data_urls(data: bytes) -> None:
    """A source of an image or a sound, up to the bytes that the decoders get."""
    kind = "image" if data[:1] < b"\x80" else "audio"
    source = text_from(data[1:])
    read_part("part", {"type": "image_url", "image_url": {"url": source, "detail": source[:4]}})
    format_of(kind, loader()._read(read_item(kind, "item", source)))


def stop_engine(data: bytes) -> None:
    """Stops in a text that comes in pieces end it where they end the same text in one piece."""
    strings, _, text = text_from(data[2:]).partition("\n")
    words = tuple(dict.fromkeys(word for word in strings.split("|") if word))
    pattern, cut = (words[0] if data[:1] < b"\x80" and words else None), max(1, data[1] % 7 if len(data) > 1 else 1)
    stops = [StopChecker(strings=words[1:] if pattern else words, pattern=pattern) for _ in range(2)]
    pieces = [text[at : at + cut] for at in range(0, len(text), cut)]
    assert ended(stops[0], [text]) == ended(stops[1], pieces)


def ended(stop: StopChecker, pieces: list[str]) -> tuple[str, Any]:
    """The text that a checker releases in all, and what stopped it."""
    released = ""
    for piece in pieces:
        part, found = stop.feed(piece, 1)
        released += part
        if found is not None:
            return released, found
    return released + stop.finish(), None


def detokeniser(data: bytes) -> None:
    """Tokens that come one by one give the text of all at once, and a copy goes on as the original does."""
    tokenizer, width = tiny().tokenizer, tiny().model.vocab_size
    ids = [int.from_bytes(data[at : at + 2]) % width for at in range(0, len(data) - 1, 2)]
    for skip in (True, False):
        first = open_detokenizer(tokenizer, [], skip_special_tokens=skip)
        head = "".join(map(first.push, ids[: len(ids) // 2]))
        second = first.copy()
        found = [head + "".join(map(each.push, ids[len(ids) // 2 :])) + each.finish() for each in (first, second)]
        assert found[0] == found[1], (ids, found)
        # Of a run of byte tokens that is not UTF-8 the decoder shows no character, a stream those that it has shown.
        if not any(token in BYTE_TOKENS for token in ids):
            assert found[0] == tokenizer.decode(ids, skip_special_tokens=skip), (ids, found)


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    function.__name__: function
    for function in (
        request_parser, schema_compiler, regex, gbnf, template, data_urls, stop_engine, detokeniser
    )
}  # fmt: skip


def main() -> None:
    target = TARGETS[sys.argv[1]]

    def run(data: bytes) -> None:
        with contextlib.suppress(MEANT):
            target(data)

    atheris.Setup([sys.argv[0], *sys.argv[2:]], run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
