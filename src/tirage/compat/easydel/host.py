"""tirage's parameter classes with EasyDeL's documented argument order, off values and lists.

They are subclasses, so every function of tirage takes them, and each equals the tirage object with the same values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn, Self, cast

import numpy as np

from tirage import params
from tirage.errors import ParamsError
from tirage.fields.frozen import FrozenDict, FrozenList
from tirage.fields.record import Record, register_pytree, specs
from tirage.fields.rules import shown
from tirage.params.updates import TokenizerLike


def _refuse(self: object, *_: object, **__: object) -> NoReturn:
    raise TypeError("a list of parameters cannot be changed in place; make new parameters with replace(name=[...])")


class ParamsList(FrozenList):
    """A list that never changes and can be hashed; equal to a list or tuple with the same items."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return tuple(self) == other if isinstance(other, tuple) else list.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse  # type: ignore[assignment]
    append = extend = insert = remove = pop = clear = sort = reverse = _refuse  # type: ignore[assignment]


class _Positional(Record):
    """A Record whose first `documented` fields may be given by position, and whose lists are lists.

    `_own` is tirage's own object with the same values, which equality, hash and serialization go by.
    """

    __slots__ = ()

    documented: ClassVar[int] = 0
    kind: ClassVar[type[Record]] = Record

    _own: Any

    def __new__(cls, *values: Any, **options: Any) -> Self:
        """A new object; values by position take the names of the fields in their documented order."""
        return super().__new__(cls, **cls._named(values, options))

    def __init__(self, *values: Any, **options: Any) -> None:
        super().__init__(**self._named(values, options))
        own = object.__new__(self.kind)
        for name in specs(self.kind):
            object.__setattr__(own, name, getattr(self, name))
            object.__setattr__(self, name, self._shown(name, getattr(self, name)))
        object.__setattr__(self, "_own", own)

    @classmethod
    def _named(cls, values: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
        names = list(specs(cls))[: cls.documented]
        if len(values) > len(names):
            raise ParamsError(
                f"{cls.__name__} must be given at most {len(names)} values by position, got {len(values)}; "
                "give the others by name"
            )
        given = dict(zip(names, values, strict=False))
        if twice := sorted(given.keys() & options.keys()):
            raise ParamsError(f"{twice[0]} must be given once, got {shown(given[twice[0]])} by position and by name")
        return given | options

    @classmethod
    def _shown(cls, name: str, value: Any) -> Any:
        """A checked value in the type that EasyDeL's attribute has."""
        return ParamsList(map(_listed, value)) if isinstance(value, tuple) else value

    def __eq__(self, other: object) -> bool:
        return self._own == (other._own if isinstance(other, _Positional) else other)

    def __hash__(self) -> int:
        return hash(self._own)

    def __repr__(self) -> str:
        return repr(self._own)

    def to_dict(self) -> dict[str, Any]:
        return self._own.to_dict()


def _listed(value: Any) -> Any:
    return ParamsList(value) if isinstance(value, tuple) else value


class SamplingParams(_Positional, params.SamplingParams):
    """One request's parameters, as `tirage.SamplingParams`, with EasyDeL's off values and types.

    The 29 documented fields may be given by position, from `n` to `extra_args`; tirage's further ones by name.
    None is an empty list for `stop`, `stop_token_ids`, `bad_words` and `bad_words_token_ids`; `seed=-1` is no seed, a
    negative `max_tokens` no limit, `logprobs=True` is 1 and False None, and likewise `prompt_logprobs`. Lists read as
    lists, `bad_words_token_ids` as None while there are none, `extra_args` as `{}`; none of them can be changed.
    """

    __slots__ = ("_own",)

    documented = 29
    kind = params.SamplingParams

    @classmethod
    def _named(cls, values: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
        named = super()._named(values, options)
        return {name: _READ.get(name, _as_given)(value) for name, value in named.items()}

    @classmethod
    def _shown(cls, name: str, value: Any) -> Any:
        if name == "bad_words_token_ids" and not value:
            return None
        return FrozenDict({}) if name == "extra_args" and value is None else super()._shown(name, value)

    @property
    def unwrapped(self) -> params.SamplingParams:
        return self._own

    def update_with_generation_config(
        self,
        generation_config: Mapping[str, Any] | object,
        model_eos_token_id: Any = None,
        *,
        adopt_sampling: bool = False,
    ) -> SamplingParams:
        return self._with(
            self._own.update_with_generation_config(
                generation_config, model_eos_token_id, adopt_sampling=adopt_sampling
            )
        )

    def update_with_tokenizer(self, tokenizer: TokenizerLike) -> SamplingParams:
        return self._with(self._own.update_with_tokenizer(tokenizer))

    def _with(self, own: params.SamplingParams) -> SamplingParams:
        return type(self)(**{name: getattr(own, name) for name in specs(self.kind)})


def _as_given(value: Any) -> Any:
    return value


def _nothing(value: Any) -> Any:
    return () if value is None else value


def _count(value: Any) -> Any:
    return (1 if value else None) if isinstance(value, (bool, np.bool_)) else value


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


_READ = {
    **dict.fromkeys(("stop", "stop_token_ids", "bad_words", "bad_words_token_ids"), _nothing),
    **dict.fromkeys(("logprobs", "prompt_logprobs"), _count),
    "seed": lambda value: None if _is_integer(value) and value == -1 else value,
    "extra_args": lambda value: None if value == {} else value,
    "max_tokens": lambda value: None if _is_integer(value) and value < 0 else value,
}
"""What EasyDeL makes of a value that tirage's own class refuses or takes in another sense."""


class GuidedDecodingParams(_Positional, params.GuidedDecodingParams):
    """One constraint on the text, as `tirage.GuidedDecodingParams`; the 12 fields may be given by position."""

    __slots__ = ("_own",)

    documented = 12
    kind = params.GuidedDecodingParams


class BeamSearchParams(_Positional, params.BeamSearchParams):
    """How a beam search runs, as `tirage.BeamSearchParams`; `BeamSearchParams(4, 64)` is 4 beams of 64 tokens."""

    __slots__ = ("_own",)

    documented = 6
    kind = params.BeamSearchParams


def register_pytrees() -> None:
    """Registers the parameter classes, those here and tirage's own, as pytrees; JAX must have been imported."""
    for kind in (SamplingParams, GuidedDecodingParams, BeamSearchParams):
        register_pytree(kind)
        register_pytree(cast("type[Any]", kind.kind))
