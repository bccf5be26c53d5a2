"""SamplingParams: everything one request can ask of the sampler and of the text around it."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

from tirage.errors import TirageError
from tirage.params import checks, updates
from tirage.params.sampling_fields import SamplingFields
from tirage.providers import load_provider


class SamplingType(enum.IntEnum):
    """How the next token is chosen: the largest logit, or a draw."""

    GREEDY = 0
    RANDOM = 1


class SamplingParams(SamplingFields):
    """One request's parameters: checked when made, never changed afterwards, hashable.

    Every field either takes effect or is refused by name; `docs/parameters.md` lists them with their ranges.
    A field that needs a stage which the chosen `semantics` lacks is refused. NumPy scalars become Python
    numbers, lists become tuples, duplicates in lists are dropped; nothing else is altered. Greedy
    (`temperature=0`) leaves the other fields as they are, and `n > 1` then gives copies.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        SamplingFields.__post_init__(self)
        checks.check_together(self)

    @property
    def unwrapped(self) -> SamplingParams:
        """The same parameters as this very class; a subclass may show some fields in another form."""
        return self

    @property
    def sampling_type(self) -> SamplingType:
        """GREEDY when the temperature is exactly 0, else RANDOM."""
        return SamplingType.GREEDY if self.temperature == 0.0 else SamplingType.RANDOM

    @property
    def all_stop_token_ids(self) -> frozenset[int]:
        """The stop tokens of the request together with the EOS tokens adopted from the model.

        With `ignore_eos` the EOS tokens are still listed; they just end nothing.
        """
        return frozenset(self.stop_token_ids) | frozenset(self.eos_token_ids)

    @property
    def lists_logprobs(self) -> bool:
        """Whether logprobs of the drawn tokens are asked for."""
        return self.logprobs is not None or bool(self.logprob_token_ids)

    @property
    def untokenized(self) -> tuple[str, ...]:
        """The names of the fields that cannot take effect before `update_with_tokenizer`."""
        return updates.untokenized(self)

    def clone(self) -> SamplingParams:
        """An equal object; parameters never change, so there is nothing deeper to copy."""
        return self.replace()

    def make_jitable(self) -> Any:
        """The same parameters as a JAX pytree, `tirage.compat.easydel.JitableSamplingParams`.

        Raises ParamsError while `bad_words` are not tokenised, TirageError where JAX is not installed.
        """
        updates.require_tokenized(self)
        try:
            return load_provider("JitableSamplingParams").from_host_params(self)
        except ModuleNotFoundError as missing:
            raise TirageError(f"make_jitable needs {missing.name}; install tirage[jax]") from missing

    def update_with_generation_config(
        self,
        generation_config: Mapping[str, Any] | object,
        model_eos_token_id: int | Sequence[int] | None = None,
        *,
        adopt_sampling: bool = False,
    ) -> SamplingParams:
        """A new object that knows the model's EOS tokens, and its sampling defaults when asked.

        `generation_config` is a mapping or an object with attributes; `eos_token_id` in it is an id, a list
        of ids or None. With `ignore_eos` only `model_eos_token_id` is noted. `adopt_sampling` takes the
        config's temperature, top_k and the like for each field that still has its default; `do_sample`
        False then means temperature 0. The object itself does not change.
        """
        return updates.with_generation_config(self, generation_config, model_eos_token_id, adopt_sampling)

    def update_with_tokenizer(self, tokenizer: updates.TokenizerLike) -> SamplingParams:
        """A new object with the ids of `bad_words` and, when DRY is on, of its sequence breakers.

        Of a bad word each token that spells it is forbidden, with and without a space before it, and each sequence of
        tokens by which the tokenizer writes it at the start of a text, after a space or inside a word (SPEC S-H6). A
        breaker stands for every token whose text contains it. Ids given by hand are kept. Twice is the same as once.
        """
        return updates.with_tokenizer(self, tokenizer)
