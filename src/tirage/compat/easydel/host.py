"""tirage's parameter classes with EasyDeL's documented argument order.

They are subclasses, so every function of tirage takes them, and each equals the tirage object with its values.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from tirage import params
from tirage.errors import ParamsError
from tirage.params.record import Record, specs
from tirage.params.rules import shown


class _Positional(Record):
    """A Record whose first `documented` fields may be given by position."""

    __slots__ = ()

    documented: ClassVar[int] = 0

    def __new__(cls, *values: Any, **options: Any) -> Self:
        """A new object; values by position take the names of the fields in their documented order."""
        return super().__new__(cls, **cls._named(values, options))

    def __init__(self, *values: Any, **options: Any) -> None:
        super().__init__(**self._named(values, options))

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

    def __eq__(self, other: object) -> bool:
        # A dataclass equals only its own class; the values decide here, and the hash already agrees.
        if not (isinstance(self, type(other)) or isinstance(other, type(self))):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in specs(type(self)))

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in specs(type(self))))


class SamplingParams(_Positional, params.SamplingParams):
    """One request's parameters, as `tirage.SamplingParams`; `seed=-1` means no seed, as in EasyDeL.

    The 29 documented fields may be given by position, from `n` to `extra_args`; tirage's further ones by name.
    """

    __slots__ = ()

    documented = 29

    @classmethod
    def _named(cls, values: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
        named = super()._named(values, options)
        seed = named.get("seed")
        return named | {"seed": None} if not isinstance(seed, bool) and seed == -1 else named


class GuidedDecodingParams(_Positional, params.GuidedDecodingParams):
    """One constraint on the text, as `tirage.GuidedDecodingParams`; the 12 fields may be given by position."""

    __slots__ = ()

    documented = 12


class BeamSearchParams(_Positional, params.BeamSearchParams):
    """How a beam search runs, as `tirage.BeamSearchParams`; `BeamSearchParams(4, 64)` is 4 beams of 64 tokens."""

    __slots__ = ()

    documented = 6
