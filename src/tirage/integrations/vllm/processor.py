"""`TirageLogitsProcessor`: one class for the interfaces of both model runners of vLLM, V1 and V2."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from hashlib import blake2b
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

from tirage.errors import ParamsError
from tirage.integrations.vllm.drawing import Drawing, Place
from tirage.integrations.vllm.requests import Request, asks, check
from tirage.integrations.vllm.versions import interfaces, unknown

_INTERFACES: tuple[Any, ...] = () if TYPE_CHECKING else interfaces()


class TirageLogitsProcessor(*_INTERFACES):
    """What vLLM loads to let tirage draw for the requests that give `extra_args={"tirage": {fields}}`.

    The fields are those of `tirage.SamplingParams` that a draw reads, or their JSON text, as `vllm_xargs` over HTTP.
    vLLM's masks are applied before: structured outputs, min_tokens, allowed_token_ids, bad_words, logit_bias. Whatever
    is wrong in a request is refused by `validate_params`. A row that cannot be drawn (NaN logits, no token allowed)
    ends its own request: it gets its EOS or stop token, and the log says why.
    """

    _in_engine: ClassVar[dict[int, weakref.ref[Any]]] = {}

    def __init__(self, vllm_config: Any, state: Any, is_pin_memory: bool | None = None) -> None:
        """As vLLM makes it: with its device (V1 model runner), or with the state of all requests (V2)."""
        self._config = vllm_config
        self._drawing = Drawing(vllm_config.model_config.get_vocab_size())
        self._requests: dict[int, Request] = {}
        self._state: Any = state
        self._numbers = count()
        self._idle = False
        self._replace_earlier()

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raises ParamsError, a ValueError, for a request that tirage cannot draw for; vLLM answers 400."""
        if not asks(sampling_params):
            return
        if unknown():
            raise ParamsError(unknown())
        check(sampling_params)

    def is_argmax_invariant(self) -> bool:
        """False: greedy requests of vLLM are drawn as well."""
        return False

    # --- the V1 model runner: rows are places in a batch, and vLLM says how the batch changes ---------------------

    def update_state(self, batch_update: Any) -> None:
        """Follows the batch: requests that left, came, and changed places."""
        if batch_update is None or self._idle:
            return
        for at in batch_update.removed:
            self._forget(at)
        for at, own, prompt, output in batch_update.added:
            self._forget(at)
            if request := self._new(own, output):
                self._requests[at] = request
                self._take_in(request, prompt)
        for start, end, direction in batch_update.moved:
            self._move(start, end, swap=direction.name == "SWAP")

    def apply(self, logits: Any, context: Any = None) -> Any:
        """The logits [n, V] with the drawn token in each row of ours; the V2 model runner gives a context."""
        if self._idle or not self._requests:
            return logits
        if context is None:
            self._drawing.apply(logits, [Place(at, r, r.history()) for at, r in sorted(self._requests.items())])
            return logits
        for places in self._in_turn(context):
            self._drawing.apply(logits, places)
        return logits

    def _move(self, start: int, end: int, *, swap: bool) -> None:
        first, second = self._requests.pop(start, None), self._requests.pop(end, None)
        if first is not None:
            self._requests[end] = first
        if second is None:
            return
        if swap:
            self._requests[start] = second
        else:
            self._drawing.remove(second)

    # --- the V2 model runner: requests have slots, and a request may have a row for each of its draft tokens --------

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Whether the request that comes into this slot is ours; its tokens can be read from the next step on."""
        self._forget(req_idx)
        request = None if self._idle else self._new(sampling_params, [])
        if request is not None:
            self._requests[req_idx] = request
        return request is not None

    def _in_turn(self, context: Any) -> Iterator[list[Place]]:
        """The rows to draw, those of one request one after the other, as each is a position further."""
        if self._requests.keys().isdisjoint(context.idx_mapping_np.tolist()):
            return
        columns = (context.expanded_idx_mapping, context.pos, context.expanded_local_pos, context.input_ids)
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        turns: dict[int, list[Place]] = {}
        for row, (slot, pos, ahead, _) in enumerate(rows):
            request = self._requests.get(slot)
            drafts = [token for *_, token in rows[row - ahead + 1 : row + 1]]
            first = pos - ahead
            if request is None or -1 in drafts or first + 1 < int(self._state.prefill_len.np[slot]):
                continue
            turns.setdefault(ahead, []).append(Place(row, request, self._output(slot, request, first + 1, drafts)))
        for ahead in sorted(turns):
            yield turns[ahead]

    def _output(self, slot: int, request: Request, length: int, drafts: list[int]) -> range | list[int]:
        """The ids that were put out, then the drafts; only their number where nothing reads them."""
        prompt = int(self._state.prompt_len.np[slot])
        tokens = self._state.all_token_ids.gpu[slot, :length].tolist() if request.reads else range(length)
        if request not in self._drawing:
            self._take_in(request, tokens[:prompt] if request.reads else [])
        return [*tokens[prompt:], *drafts] if request.reads else range(length - prompt + len(drafts))

    # --- both --------------------------------------------------------------------------------------------------------

    def _new(self, own: Any, output: list[int]) -> Request | None:
        """The request of vLLM's parameters, None for one that is not ours."""
        if not asks(own):
            return None
        return Request.of(own, output, seed=self._seed())

    def _take_in(self, request: Request, prompt: Any) -> None:
        if prompt is None and request.reads:
            request.fail("the prompt is given as embeddings, and its tokens would be read")
            return
        self._drawing.add(request, prompt or [])

    def _forget(self, at: int) -> None:
        if request := self._requests.pop(at, None):
            self._drawing.remove(request)

    def _seed(self) -> int | None:
        """The seed of a request without one: fresh, and the same in all workers of an engine, as each of them draws."""
        number = next(self._numbers)
        if self._config.parallel_config.world_size == 1:
            return None
        digest = blake2b(f"{self._config.instance_id} {number}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def _replace_earlier(self) -> None:
        """Of two in one engine, found by the entry point and named by `--logits-processors`, the last alone draws."""
        earlier = self._in_engine.get(id(self._config), lambda: None)()
        if earlier is not None:
            earlier._idle = True
        self._in_engine[id(self._config)] = weakref.ref(self)
