"""SGLang's interface for custom logits processors: the class that its documentation derives from.

A processor's code is registered by whoever runs the server, `tirage serve --enable-custom-logit-processor
--logits-processor MyProcessor=my_module:MyProcessor`; a request only carries its name.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any, ClassVar

__all__ = ["CustomLogitProcessor"]


class CustomLogitProcessor(ABC):
    """A rule that changes logits, with the arguments that each request sends as `custom_params`.

    `name` is the one it is registered under; without it, that of the class. `arg_names` may list the arguments it
    takes, so that a request with another is refused. With `needs_past`, `tirage.sample` refuses it for rows without a
    history; otherwise `"__req__"` holds no tokens there.
    """

    name: ClassVar[str | None] = None
    arg_names: ClassVar[tuple[str, ...] | None] = None
    wants_past: ClassVar[bool] = True
    needs_past: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, logits: Any, custom_param_list: list[dict[str, Any]]) -> Any:
        """Logits of the same shape, made from float32 NumPy `logits` [rows, V], which may be changed in place.

        `custom_param_list` has one dict per row: the request's `custom_params`, and under `"__req__"` an object with
        its `origin_input_ids` and `output_ids`. The logits are a copy: no neighbour and no caller sees what is
        written into them. An exception ends the request that it happened in.
        """

    def check(self, custom_params: dict[str, Any]) -> None:
        """Raises ValueError for arguments that make no sense: such a request is refused before anything runs.

        Without an own `check` any arguments pass, and those that make the call fail end their request with an error.
        """
        return

    @classmethod
    def registered_name(cls) -> str:
        """The name that requests refer to."""
        return cls.name or cls.__name__

    @classmethod
    def to_str(cls) -> str:
        """JSON text for the request field `custom_logit_processor`: a reference by name, without any code."""
        return json.dumps({"processor": cls.registered_name()})
