"""The logits processor through which vLLM asks for tokens, for both of its model runners.

The first runner (`vllm.v1.worker.gpu_model_runner`) tells of changes by rows, the second (`vllm.v1.worker.gpu`) by
slots; one class has the methods of both, and the one that runs calls its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from tirage.models.vllm import installed

KEY = "tirage_row"
"""The name in `SamplingParams.extra_args` under which a request carries its `VllmRow`."""


class VllmRow:
    """A request inside vLLM: its key, its id there, and what to do with its logits.

    `on_logits(logits, rows)` takes the logits of a step, float32 [B, V], with (index, VllmRow) of the rows in it, and
    changes them in place. Each prompt token is to have `top` most likely ones; `scored` of them have their logprobs.
    """

    __slots__ = ("key", "on_logits", "request_id", "scored", "top")

    def __init__(self, key: int, on_logits: Callable[[Any, list[tuple[int, VllmRow]]], None], *, top: int = 0) -> None:
        self.key, self.on_logits, self.top = key, on_logits, top
        self.request_id, self.scored = "", 0

    def __deepcopy__(self, memo: Any) -> VllmRow:
        """Itself: vLLM copies the parameters of a request, and the copy must mean the same request."""
        return self


@cache
def processor_class() -> type:
    """The class to give to vLLM; made here, as its bases come from vLLM."""
    slots, update_rows = installed.find(installed.SlotLogitsProcessor), installed.find(installed.process_dict_updates)
    bases = (installed.find(installed.LogitsProcessor), *([] if slots is None else [slots]))

    def update_state(self: _Rows, batch_update: Any) -> None:
        update_rows(self.rows, batch_update, lambda params, *_: row_of(params))

    return type("TirageRows", (_Rows, *bases), {"update_state": update_state})


class _Rows:
    """The methods of both interfaces; `rows` has the requests by row, or by slot where the second runner runs."""

    def __init__(self, *_: Any) -> None:
        self.rows: dict[int, VllmRow] = {}

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Accepts all: the requests of this engine are checked before they are made."""

    def is_argmax_invariant(self) -> bool:
        """False: the drawn token is rarely the largest logit."""
        return False

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Puts a request into a slot; whether it is one of tirage's."""
        self.rows.pop(req_idx, None)
        row = row_of(sampling_params)
        if row is not None:
            self.rows[req_idx] = row
        return row is not None

    def apply(self, logits: Any, ctx: Any = None) -> Any:
        """The logits [B, V], of which each row of a request has its drawn token as the only candidate."""
        if ctx is None:
            found = [(index, row) for index, row in sorted(self.rows.items()) if index < len(logits)]
        else:
            slots = ctx.idx_mapping_np.tolist()
            found = [(index, self.rows[slot]) for index, slot in enumerate(slots) if slot in self.rows]
        if found:
            found[0][1].on_logits(logits, found)
        return logits


def row_of(params: Any) -> VllmRow | None:
    """The row that a request's parameters carry; None for one that is not tirage's, such as vLLM's own warm-up."""
    row = (getattr(params, "extra_args", None) or {}).get(KEY)
    return row if isinstance(row, VllmRow) else None
