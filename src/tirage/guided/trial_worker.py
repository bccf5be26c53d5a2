"""A child process that compiles grammars on trial, before the serving process compiles them.

It reads one JSON object per line and answers each with another. A compilation that takes too long ends the process by
an alarm, one that needs too much memory by a resource limit. The file runs as a script.
"""

from __future__ import annotations

import base64
import signal
from typing import Any

from tirage.workers.child_script import Answer, answer_lines, limit_memory
from tirage.workers.large_stack import on_large_stack

_GROWTH = 256 << 20
STACK_MEGABYTES = 32
"""Half the stack on which the serving process compiles, so that what overflows one overflows it here."""
# Bytes that a trial follows while each is the only one allowed: a grammar may fail where many alternatives begin.
_CERTAIN = 256


class ByteTokenizer:
    """A tokenizer for llguidance whose vocabulary is the 256 bytes and an end token."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


class TrialWorker:
    """Compiles grammars with either library; each is loaded when a task asks for it."""

    def __init__(self) -> None:
        self._bytes: Any = None
        self._compilers: dict[str, Any] = {}

    def answer(self, task: Answer) -> Answer:
        """The answer to one task: `ready` after loading; otherwise `error`, `bytes` and, for xgrammar, `compiled`."""
        if task["task"] == "load":
            return self._load(task)
        # Processor time, so that a busy machine refuses no grammar that a quiet one accepts. The other alarm ends a
        # child that nobody waits for any more.
        signal.setitimer(signal.ITIMER_PROF, task["seconds"])
        signal.setitimer(signal.ITIMER_REAL, task["seconds"] * 12)
        try:
            return self._xgrammar(task) if task["task"] == "xgrammar" else self._llguidance(task["grammar"])
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _load(self, task: Answer) -> Answer:
        if task["compiler"] == "llguidance":
            import llguidance

            self._bytes = llguidance.LLTokenizer(llguidance.TokenizerWrapper(ByteTokenizer()), n_vocab=257, slices=[])
        else:
            import xgrammar

            tokens = [base64.b64decode(token) for token in task["tokens"]]
            info = xgrammar.TokenizerInfo(tokens, vocab_size=len(tokens), stop_token_ids=[len(tokens) - 1])
            self._compilers[task["vocabulary"]] = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        limit_memory(_GROWTH)
        return {"ready": True}

    def _llguidance(self, grammar: str) -> Answer:
        import llguidance

        before = resident()
        matcher = llguidance.LLMatcher(self._bytes, grammar, log_level=0)
        error = matcher.get_error() or follow(matcher)
        return {"error": error, "bytes": max(0, resident() - before)}

    def _xgrammar(self, task: Answer) -> Answer:
        compiler = self._compilers[task["vocabulary"]]
        try:
            compiled = getattr(compiler, task["method"])(*task["arguments"], **task["options"])
        except Exception as error:  # the library raises errors of many kinds
            return {"error": str(error) or type(error).__name__}
        return {"error": "", "compiled": compiled.serialize_json(), "bytes": compiled.memory_size_bytes}


def follow(matcher: Any) -> str:
    """Follows the text as far as it is determined; gives why no text exists or the compiler fails there, or ""."""
    for _ in range(_CERTAIN):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_error() or matcher.is_accepting():
            break
        if not mask:
            return "no text satisfies it"
        if mask & (mask - 1):
            break
        matcher.consume_token(mask.bit_length() - 1)
    return matcher.get_error()


def resident() -> int:
    """Bytes of resident memory; 0 where the system does not report them."""
    try:
        with open("/proc/self/statm", encoding="ascii") as status:
            return int(status.read().split()[1]) * 4096
    except OSError:
        return 0


def main() -> None:
    """Answers tasks until the input ends."""
    on_large_stack(lambda: answer_lines(TrialWorker().answer), megabytes=STACK_MEGABYTES)


if __name__ == "__main__":
    main()
