"""EasyDeL's processors that force, suppress or ban tokens: their meaning, per row, eager and compiled."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from tirage import ParamsError
from tirage.compat import easydel
from tirage.compat.easydel import LogitsProcessorList

V = 6
LOW = -np.inf
IDS = np.array([[1, 2, 1, 2, 3, 0], [4, 4, 4, 4, 4, 4]])
SCORES = np.arange(12, dtype=np.float32).reshape(2, V)

CASES: list[tuple[str, tuple[Any, ...]]] = [
    ("EmptyProcessor", ()),
    ("MinLengthLogitsProcessor", (3, 5)),
    ("ForcedBOSTokenLogitsProcessor", (2,)),
    ("ForcedEOSTokenLogitsProcessor", (4, 5)),
    ("SuppressTokensLogitsProcessor", ([1, 3],)),
    ("SuppressTokensLogitsProcessor", ([],)),
    ("SuppressTokensAtBeginLogitsProcessor", ([0, 2], 2)),
    ("ForceTokensLogitsProcessor", ({1: 4, 3: 2, 2: None},)),
]


def edited(name: str, arguments: tuple[Any, ...], cur_len: Any) -> np.ndarray:
    return np.asarray(getattr(easydel, name)(*arguments)(IDS, SCORES, cur_len))


def banned(*ids: int) -> np.ndarray:
    return np.where(np.isin(np.arange(V), ids), LOW, SCORES)


def only(*ids: int) -> np.ndarray:
    return np.broadcast_to(np.where(np.isin(np.arange(V), ids), 0.0, LOW), (2, V))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("MinLengthLogitsProcessor", (3, 5), {2: banned(5), 3: banned(5), 4: SCORES}),
        ("MinLengthLogitsProcessor", (1, [5, 0]), {1: banned(5, 0), 2: SCORES}),
        ("ForcedBOSTokenLogitsProcessor", (2,), {1: only(2), 2: SCORES, 0: SCORES}),
        ("ForcedEOSTokenLogitsProcessor", (4, 5), {2: SCORES, 3: only(5), 4: SCORES}),
        ("ForcedEOSTokenLogitsProcessor", (4, (5, 1)), {3: only(5, 1)}),
        ("SuppressTokensLogitsProcessor", ([1, 3],), {0: banned(1, 3), 9: banned(1, 3)}),
        ("SuppressTokensLogitsProcessor", ([],), {3: SCORES}),
        ("SuppressTokensLogitsProcessor", ([V + 3],), {3: SCORES}),
        ("SuppressTokensAtBeginLogitsProcessor", ([0, 2], 2), {1: SCORES, 2: banned(0, 2), 3: SCORES}),
        (
            "ForceTokensLogitsProcessor",
            ({1: 4, 3: 2, 2: None},),
            {0: SCORES, 1: only(4), 2: SCORES, 3: only(2), 4: SCORES},
        ),
        ("ForceTokensLogitsProcessor", ([[1, 4]],), {1: only(4), 2: SCORES, 99: SCORES}),
        ("EmptyProcessor", (), {3: SCORES}),
    ],
)
def test_what_each_does_at_each_length(name: str, arguments: Any, expected: dict[int, np.ndarray]) -> None:
    for cur_len, scores in expected.items():
        np.testing.assert_array_equal(edited(name, arguments, cur_len), scores)


@pytest.mark.slow
@pytest.mark.parametrize("name_and_arguments", [*CASES, ("NoRepeatNGramLogitsProcessor", (2,))])
def test_each_row_has_its_own_length(name_and_arguments: tuple[str, Any]) -> None:
    name, arguments = name_and_arguments
    together = edited(name, arguments, np.array([3, 1]))
    np.testing.assert_array_equal(together[0], edited(name, arguments, 3)[0])
    np.testing.assert_array_equal(together[1], edited(name, arguments, 1)[1])


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("length", [1, 2, 4, 6])
def test_no_ngram_is_repeated_as_in_transformers(size: int, length: int) -> None:
    torch = pytest.importorskip("torch", reason="needs torch; pip install 'tirage[torch]' runs it")
    transformers = pytest.importorskip("transformers", reason="needs transformers; pip install 'tirage[torch]' runs it")
    found = edited("NoRepeatNGramLogitsProcessor", (size,), length)
    if not size:
        np.testing.assert_array_equal(found, SCORES)
        return
    theirs = transformers.NoRepeatNGramLogitsProcessor(size)(torch.tensor(IDS[:, :length]), torch.tensor(SCORES))
    np.testing.assert_array_equal(found, theirs.numpy())


@pytest.mark.slow
def test_they_run_in_a_list_and_in_a_compiled_loop() -> None:
    processors = LogitsProcessorList([
        easydel.MinLengthLogitsProcessor(3, 5),
        easydel.NoRepeatNGramLogitsProcessor(2),
        easydel.ForceTokensLogitsProcessor({4: 1}),
    ])
    compiled = jax.jit(lambda ids, scores, cur_len: processors(ids, scores, cur_len))
    for cur_len in (2, 3, 4, 5):
        np.testing.assert_array_equal(compiled(IDS, SCORES, cur_len), processors(IDS, SCORES, cur_len))
    np.testing.assert_array_equal(compiled(IDS, SCORES, 4), only(1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: easydel.MinLengthLogitsProcessor(-1, 5), "min_length must be an integer >= 0, got -1"),
        (lambda: easydel.MinLengthLogitsProcessor(True, 5), "min_length must be an integer >= 0, got True"),
        (lambda: easydel.MinLengthLogitsProcessor(3, -5), r"eos_token_id must be a token id in \[0, 1048576\), got -5"),
        (lambda: easydel.MinLengthLogitsProcessor(3, "</s>"), "eos_token_id must be a list of token ids, got '</s>'"),
        (lambda: easydel.ForcedEOSTokenLogitsProcessor(0, 5), "max_length must be an integer >= 1, got 0"),
        (lambda: easydel.SuppressTokensLogitsProcessor([1.5]), "suppress_tokens must be"),
        (lambda: easydel.ForceTokensLogitsProcessor({-1: 2}), "force_token_map must be a mapping from lengths"),
        (lambda: easydel.ForceTokensLogitsProcessor([1, 2]), "force_token_map must be a mapping from lengths"),
        (lambda: easydel.NoRepeatNGramLogitsProcessor(1.5), "ngram_size must be an integer >= 0, got 1.5"),
        (lambda: edited("MinLengthLogitsProcessor", (3, 5), [1, 2, 3]), "cur_len must hold 1 or 2 values"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        make()


PROBE = """
import json, os, sys
os.environ["JAX_PLATFORMS"] = "cpu"
import numpy as np
import jax.numpy as jnp
import easydel.inference.logits_process as real
cases, ids, scores = json.load(sys.stdin)
out = []
for name, arguments in cases:
    arguments = [{int(k): v for k, v in a.items()} if isinstance(a, dict) else a for a in arguments]
    made = getattr(real, name)(*arguments)
    out.append([np.asarray(made(jnp.array(ids), jnp.array(scores, jnp.float32), n)).tolist() for n in range(7)])
print(json.dumps(out))
"""


@pytest.mark.skipif(
    "TIRAGE_TEST_EASYDEL_PYTHON" not in os.environ,
    reason="name the interpreter of an environment with easydel in TIRAGE_TEST_EASYDEL_PYTHON to run it",
)
def test_they_do_what_easydels_own_package_does() -> None:
    given = json.dumps([CASES, IDS.tolist(), SCORES.tolist()])
    command = [os.environ["TIRAGE_TEST_EASYDEL_PYTHON"], "-c", PROBE]
    answer = subprocess.run(command, input=given, capture_output=True, text=True, check=True, timeout=600).stdout
    theirs = json.loads(answer.splitlines()[-1])
    for (name, arguments), expected in zip(CASES, theirs, strict=True):
        for cur_len, scores in enumerate(expected):
            np.testing.assert_array_equal(edited(name, arguments, cur_len), np.array(scores, np.float32), name)
