"""How an engine speculates: where drafts come from, and how long they may be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from tirage.engine.scheduler_config import is_integer
from tirage.errors import ParamsError, nearest

METHODS = ("ngram", "draft_model")
MOST_TOKENS = 32
"""The most tokens of a draft."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """Drafts of text that the model reads ahead; the names are those of vLLM's `speculative_config`.

    `method` "ngram" is prompt lookup: what followed the last n-gram where the text or its prompt had it before, with n
    from `prompt_lookup_max` down to `prompt_lookup_min` tokens; "draft_model" has `model`, a smaller one with the same
    vocabulary, go ahead. A draft has at most `num_speculative_tokens` tokens, 1 to 32. Where more than
    `disable_by_batch_size` samples and beams decode together there are no drafts. Raises ParamsError otherwise.
    """

    method: Literal["ngram", "draft_model"] = "ngram"
    model: Any = None
    num_speculative_tokens: int = 8
    prompt_lookup_max: int = 4
    prompt_lookup_min: int = 1
    disable_by_batch_size: int = 4

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            hint = nearest(str(self.method), METHODS)
            raise ParamsError(f"speculative_config method must be 'ngram' or 'draft_model', got {self.method!r}{hint}")
        if (self.method == "draft_model") != (self.model is not None):
            raise ParamsError(
                "speculative_config method must be 'draft_model' where a draft model is given and only there, "
                f"got {self.method!r} with model {self.model!r:.60}"
            )
        if not is_integer(self.num_speculative_tokens, low=1) or self.num_speculative_tokens > MOST_TOKENS:
            got = self.num_speculative_tokens
            raise ParamsError(f"num_speculative_tokens must be an integer in [1, {MOST_TOKENS}], got {got!r}")
        for name in ("prompt_lookup_max", "prompt_lookup_min", "disable_by_batch_size"):
            if not is_integer(getattr(self, name), low=1):
                raise ParamsError(f"{name} must be a positive integer, got {getattr(self, name)!r}")
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ParamsError(
                f"prompt_lookup_min must be at most prompt_lookup_max, got {self.prompt_lookup_min} and "
                f"{self.prompt_lookup_max}"
            )

    @classmethod
    def of(cls, given: Mapping[str, Any] | SpeculativeConfig | None, draft: Any = None) -> SpeculativeConfig | None:
        """The config of a mapping of its fields, with the model `draft` if one is given; None where neither is.

        Raises ParamsError for unknown names and for a draft model that is given twice.
        """
        if given is None and draft is None:
            return None
        if isinstance(given, SpeculativeConfig):
            if draft is not None:
                raise ParamsError(f"draft must go with a mapping or alone, got {draft!r:.60} beside a config")
            return given
        if given is not None and not isinstance(given, Mapping):
            raise ParamsError(f"speculative_config must be a mapping of its fields, got {type(given).__name__}")
        fields_given = dict(given or {})
        known = [each.name for each in fields(cls)]
        for name in fields_given:
            if name not in known:
                hint = nearest(str(name), known)
                raise ParamsError(f"speculative_config must have known fields ({', '.join(known)}), got {name!r}{hint}")
        if draft is not None and fields_given.setdefault("model", draft) is not draft:
            raise ParamsError(f"draft must not go with speculative_config's model, got {draft!r:.60} as well")
        if fields_given.get("model") is not None:
            fields_given.setdefault("method", "draft_model")
        return cls(**fields_given)


def parse_speculative_config(text: str | None) -> dict[str, Any] | None:
    """The fields of a config in JSON, as command lines have it. Raises ParamsError for anything but an object."""
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ParamsError(f"--speculative-config must be JSON, got {text!r:.80}: {error}") from None
    if not isinstance(found, dict):
        raise ParamsError(f"--speculative-config must be a JSON object, got {text!r:.80}")
    return found
