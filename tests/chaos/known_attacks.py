"""Requests of allowed values that once stopped a server, held its memory, or kept a neighbour waiting."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_DOUBLING = "((a|b)*a(a|b){11}c|.*x.{9}q){3}end"
_SLOW_GRAMMAR = 'root ::= s+\ns ::= s s s | [a-z] | [a-z ] s | s [a-z ] | "(" s ")"'
_EMPTY_GRAMMAR = 'root ::= root root | "a" | [a-z ]+ | ""'


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAttack:
    """A request, how many of it were sent at once, and what is different in each."""

    body: Mapping[str, Any]
    copies: int = 1
    route: str = "/generate"

    def at(self, number: int) -> dict[str, Any]:
        """The body of one copy: `@` and `#` in its constraint stand for a text and a number of its own."""
        return json.loads(json.dumps(self.body).replace("@", "z" * number).replace("#", str(10_000_000 + number)))


def sampled(text: Any = "Once upon", /, **params: Any) -> dict[str, Any]:
    """A body of /generate, streamed."""
    return {"text": text, "stream": True, "sampling_params": {"max_new_tokens": 48, **params}}


_MANY_WAYS = json.dumps({"type": "string", "pattern": "^(a|b)*a(a|b){2000}$"})
_CHAIN = "".join(f'r{i} ::= "a" r{i + 1}\n' for i in range(900))
_SCHEMA = json.dumps({"type": "object", "properties": {f"p{i}": {} for i in range(2_700)}})
KNOWN_ATTACKS: Mapping[str, KnownAttack] = {
    "samples that each search for an end": KnownAttack(
        body=sampled(n=128, close_grammar=True, regex=f"{_DOUBLING}@"), copies=6
    ),
    "an automaton of bad words for each sample": KnownAttack(
        body=sampled(n=128, bad_words=[f"{i:b<250}" for i in range(128)], bad_words_level="text")
    ),
    "the end of a text that may go on in many ways": KnownAttack(
        body=sampled(n=128, close_grammar=True, json_schema=_MANY_WAYS)
    ),
    "the end of a long chain of rules": KnownAttack(
        body=sampled(n=128, close_grammar=True, ebnf=f'root ::= r0\n{_CHAIN}r900 ::= "b"')
    ),
    "an end of many names that no token can spell": KnownAttack(
        body={"input_ids": [5] * 428, "stream": True,
              "sampling_params": {"json_schema": _SCHEMA, "close_grammar": True, "stop_token_ids": [*range(1408)]}}
    ),
    "a schema of many names": KnownAttack(body=sampled(json_schema=_SCHEMA)),
    "schemas that are hard to read": KnownAttack(
        body=sampled(json_schema='{"type": "integer", "multipleOf": #}'), copies=64
    ),
    "masks of an ambiguous grammar": KnownAttack(body=sampled(n=128, ebnf=_SLOW_GRAMMAR)),
    "masks of a grammar with empty rules": KnownAttack(body=sampled(n=128, ebnf=_EMPTY_GRAMMAR)),
    "beams in every place": KnownAttack(
        body={**sampled(max_new_tokens=400, beam_width=128), "stream": False}, copies=2
    ),
    "samples in every place": KnownAttack(
        body={**sampled(["a", "b"], n=128, max_new_tokens=480, ignore_eos=True), "return_logprob": True,
              "top_logprobs_num": 1}
    ),
    "logprobs of a thousand tokens at each step, in one answer": KnownAttack(
        body={**sampled(n=2, max_new_tokens=240, ignore_eos=True), "stream": False, "return_logprob": True,
              "token_ids_logprob": [*range(1, 1025)]}
    ),
    "logprobs of a thousand tokens at each step, in events that repeat them": KnownAttack(
        body={"input": "Once upon", "stream": True, "max_output_tokens": 160, "logprob_token_ids": [*range(1, 1025)],
              "include": ["message.output_text.logprobs"], "ignore_eos": True},
        route="/v1/responses",
    ),
    "logprobs of many samples, in events that have all so far": KnownAttack(
        body={**sampled(n=128, max_new_tokens=90, ignore_eos=True), "return_logprob": True, "top_logprobs_num": 20}
    ),
    "the ids of every token that could have been drawn": KnownAttack(
        body={**sampled(n=128, max_new_tokens=23, ignore_eos=True, top_k=1400, return_kept=True, max_kept_ids=1400),
              "stream": False}
    ),
    "a pattern that every sample follows": KnownAttack(
        body=sampled(n=128, regex="(.*[aeiou].{9}[xyz]|.*[bcd].{8}[klm]){1,5}END")
    ),
}  # fmt: skip
