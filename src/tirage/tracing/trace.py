"""`explain`: one row, drawn as `sample` draws it, then run once more under observation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage import sampling
from tirage.backends.numpy.distribution import (
    BranchLaw,
    Distribution,
    RowInput,
    outcome,
    request_of,
    token_logprob,
    unpacked,
)
from tirage.draw import Status
from tirage.errors import ParamsError
from tirage.exact.keys import keys, largest
from tirage.operators.row import OK, Process, RowState
from tirage.params import SamplingParams
from tirage.sampling_batch import SamplingBatch, SamplingRow
from tirage.tracing import drawing, notes
from tirage.tracing.explanation import Explanation
from tirage.tracing.recorder import Recorder, Watch
from tirage.tracing.records import TokenTrace, UniformDraw
from tirage.tracing.texts import TokenTexts


def explain(
    logits: Any,
    params: SamplingParams,
    *,
    tokenizer: Any | None = None,
    history: Sequence[sampling.Pair] | None = None,
    step: int | np.integer[Any] | None = None,
    mask: Any = None,
    sample_index: int | np.integer[Any] = 0,
    state: float | None = None,
    top: int = 10,
    follow: Sequence[int] = (),
) -> Explanation:
    """Every stage of one draw: the Explanation of the token that `tirage.sample` draws for the same arguments.

    `logits` [V] or [1, V]; `history`, `step`, `mask`, `sample_index` and `state` as for `sample`. `tokenizer`, a
    `tokenizers.Tokenizer`, a Hugging Face tokenizer or any object with `encode` and `decode`, gives tokens their
    text. `top` is how many of the most likely tokens are followed, counted once before and once after the stages;
    `follow` are ids in [0, V) of further ones.
    Without a seed a fresh one is drawn and reported.

    A row that has no token is explained too: `status` and `reason` say why. Raises ParamsError where `sample`
    does, for more than one row, for a negative `top` and for ids to `follow` outside the vocabulary; RowError when a
    custom processor fails.
    """
    matrix = _one_row(logits)
    _check_top(top)
    followed = _ids_to_follow(follow, matrix.shape[1])
    row = sampling.row_states(matrix.shape, params, history, step, sample_index, state)[0]
    words = sampling.host_mask(mask, matrix.shape)
    case = _case(row, _named_request(matrix, row, words), _hard_masks(row, words, matrix.shape[1]), tokenizer)
    return _explanation(case, top, followed)


def _one_row(logits: Any) -> NDArray[np.float32]:
    matrix = sampling.on_host(logits)
    if matrix.shape[0] != 1:
        raise ParamsError(f"logits must be one row, [V] or [1, V], got {list(matrix.shape)}; explain rows one by one")
    return matrix


def _check_top(top: Any) -> None:
    if isinstance(top, (bool, np.bool_)) or not isinstance(top, (int, np.integer)) or top < 0:
        raise ParamsError(f"top must be an integer >= 0, got {top!r}; 0 follows the drawn token alone")


def _ids_to_follow(follow: Sequence[int], size: int) -> frozenset[int]:
    try:
        each = list(follow)
    except TypeError:
        raise ParamsError(
            f"follow must be a sequence of token ids, got {follow!r:.60}; wrap one id in a list"
        ) from None
    for token in each:
        if isinstance(token, (bool, np.bool_)) or not isinstance(token, (int, np.integer)) or not 0 <= token < size:
            raise ParamsError(f"follow must hold token ids in [0, {size}), got {token!r:.60}")
    return frozenset(map(int, each))


def _named_request(matrix: NDArray[np.float32], state: SamplingRow, words: NDArray[np.int32] | None) -> RowInput:
    """What the row asks, its steps with the names of their stages (which packing drops)."""
    batch = SamplingBatch.of([state], matrix.shape[1])
    process = batch.processes[0] if batch.processes else None
    request = request_of(matrix, batch.metadata(words), 0, process and _remembered(process))
    return replace(request, steps=state.lower().steps)


def _remembered(process: Process) -> Process:
    """`process`, called once per input: a processor that is not a function of its logits must not split the story."""
    known: dict[bytes, NDArray[np.float32]] = {}

    def remembered(x: NDArray[np.float32]) -> NDArray[np.float32]:
        key = x.tobytes()
        if key not in known:
            known[key] = process(x)
        return known[key]

    return remembered


def _hard_masks(state: SamplingRow, words: NDArray[np.int32] | None, size: int) -> dict[str, NDArray[np.bool_]]:
    """The caller's mask and the allowed ids, bool [V] each, where the call has them."""
    masks = {}
    if words is not None:
        masks["mask"] = unpacked(words[0], size)
    if state.compiled.allowed is not None:
        masks["allowed_token_ids"] = np.zeros(size, bool)
        masks["allowed_token_ids"][state.compiled.allowed] = True
    return masks


@dataclass(frozen=True, slots=True)
class _Case:
    """One row: the request in flight, its law, its masks, and what was seen of the run that gave the law, if it was."""

    state: SamplingRow
    result: Distribution
    masks: Mapping[str, NDArray[np.bool_]]
    texts: TokenTexts
    seen: Recorder | None

    @property
    def chain(self) -> BranchLaw:
        """The branch of the law that the row takes."""
        if self.result.status != OK:
            return self.result.off
        return self.result.chain(self.state.seed, self.state.at, self.state.sample_index)

    def watch(self, *, coin: bool, check: bool) -> Recorder:
        """What was seen of a run: that which gave the law, or another one where the law is a mixture."""
        return self.seen or _watched(self.state, self.result.request, self.masks, self.texts, coin=coin, check=check)[0]


def _case(
    state: SamplingRow, request: RowInput, masks: Mapping[str, NDArray[np.bool_]], tokenizer: Any | None
) -> _Case:
    texts = TokenTexts(tokenizer)
    if request.checked is not None or request.coin_share:
        return _Case(state, outcome(request), masks, texts, None)
    recorder, row = _watched(state, request, masks, texts, coin=False, check=True)
    return _Case(state, Distribution(request, BranchLaw(row), None, 0), masks, texts, recorder)


def _watched(
    state: SamplingRow,
    request: RowInput,
    masks: Mapping[str, NDArray[np.bool_]],
    texts: TokenTexts,
    *,
    coin: bool,
    check: bool,
) -> tuple[Recorder, RowState]:
    """A run of the request under observation, and the row that it leaves."""
    recorder = Recorder(Watch(state=state, request=request, coin=coin, check=check, masks=masks, texts=texts))
    return recorder, recorder.run()


def _explanation(case: _Case, top: int, follow: frozenset[int]) -> Explanation:
    state, result, texts = case.state, case.result, case.texts
    ok = result.status == OK
    throws = drawing.throws(case.chain, state, texts) if ok else ()
    coin = drawing.coin(result, state)
    winner, law = _winner(case.chain, throws), result.law()
    check = case.chain.fallback is None or winner is case.chain.fallback
    recorder = case.watch(coin=coin is not None and coin.on, check=check)
    followed = _followed(case, law, throws, winner, top, follow)
    recorder.follow(followed)
    token = throws[-1].hit.token if throws else None
    return Explanation(
        params=state.params,
        semantics=state.compiled.semantics.label,
        vocab_size=result.request.logits.size,
        seed=state.seed,
        fresh_seed=state.params.seed is None,
        step=state.at,
        sample_index=state.sample_index,
        status=Status(result.status),
        token=token,
        **_chances(case, law, winner, throws),
        mixed=result.mixed,
        reason=notes.reason(notes.Ending(winner, texts, recorder.stages, throws, coin)),
        all_stages=tuple(recorder.stages),
        tokens=_traces(case, law, recorder, followed, throws),
        coin=coin,
        throws=throws,
    )


def _winner(chain: BranchLaw, throws: tuple[UniformDraw, ...]) -> RowState:
    """The finished row that gave the token, or that could not."""
    if chain.fallback is None or len(throws) == 1:
        return chain.row
    return chain.fallback if chain.row.status == OK else chain.row


def _chances(
    case: _Case, law: NDArray[np.float64], winner: RowState, throws: tuple[UniformDraw, ...]
) -> dict[str, Any]:
    """Probability, logprob and support size, as `law` and `Draw` have them."""
    if not throws:
        return {"probability": float("nan"), "logprob": float("nan"), "support_size": 0}
    token, result = throws[-1].hit.token.token_id, case.result
    return {
        "probability": float(law[token]),
        "logprob": float(token_logprob(result, case.chain, token)),
        "support_size": len(result.points()) if result.mixed else int((winner.w() > 0).sum()),
    }


def _followed(
    case: _Case,
    law: NDArray[np.float64],
    throws: tuple[UniformDraw, ...],
    winner: RowState,
    top: int,
    follow: frozenset[int],
) -> NDArray[np.int64]:
    """The tokens to follow, by model rank: most likely before and after, asked for, drawn, refused, not finite."""
    x = case.result.request.logits
    key = keys(np.where(np.isfinite(x), x, np.float32(-np.inf)).astype(np.float32))
    chosen = set(largest(key, top).tolist()) | follow | {throw.hit.token.token_id for throw in throws}
    if throws:
        chosen |= set(_most_probable(law, top))
    else:
        chosen |= set(np.flatnonzero(notes.not_finite(winner.x))[: max(top, 1)].tolist())
    return np.array(sorted(chosen, key=lambda token: (-int(key[token]), token)), np.int64)


def _most_probable(law: NDArray[np.float64], n: int) -> list[int]:
    """The `n` tokens of a law [V] with the highest probabilities above 0, of equal ones those with lower ids."""
    found = np.flatnonzero(law > 0)
    if 0 < n < found.size:
        # All that equal the last of them, so that ids decide.
        found = found[law[found] >= -np.partition(-law[found], n - 1)[n - 1]]
    return found[np.argsort(-law[found], kind="stable")[:n]].tolist()


def _traces(
    case: _Case,
    law: NDArray[np.float64],
    recorder: Recorder,
    tokens: NDArray[np.int64],
    throws: tuple[UniformDraw, ...],
) -> tuple[TokenTrace, ...]:
    drawn = throws[-1].hit.token.token_id if throws else -1
    x = case.result.request.logits
    key = keys(np.where(np.isnan(x), np.float32(-np.inf), x).astype(np.float32))
    above = x.size - np.searchsorted(np.sort(key), key[tokens], side="right")
    return tuple(
        TokenTrace(
            token=case.texts.token(int(token)),
            drawn=int(token) == drawn,
            rank=0 if np.isnan(x[token]) else 1 + int(above[i]),
            logit=float(x[token]),
            model_probability=recorder.steps_of(i)[0].probability_before,
            probability=float(law[token]),
            removed_by=recorder.removed_by(i),
            steps=recorder.steps_of(i),
        )
        for i, token in enumerate(tokens)
    )
