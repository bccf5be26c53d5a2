"""Types of parameters for type checkers: what a field may be given, and what it then holds.

A type checker reads a field whose type has `__set__` as taking that method's value when the object is made (typing
specification, "dataclasses: descriptor-typed fields"). At run time these are plain fields: `rules` checks and converts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Held = TypeVar("Held")
Given = TypeVar("Given")

Boolean = bool | np.bool_
Integer = int | np.integer[Any]
Number = float | np.integer[Any] | np.floating[Any]
TokenIds = Sequence[int] | Sequence[np.integer[Any]] | AbstractSet[int] | NDArray[np.integer[Any]]
Strings = Sequence[str] | AbstractSet[str]
IdLists = Sequence[Integer | TokenIds] | NDArray[np.integer[Any]]
SequenceBiases = Mapping[tuple[int, ...], float] | Sequence[Sequence[Any]]
Biases = Mapping[int, Number] | Mapping[np.integer[Any], Number]


class Accepts(Generic[Held, Given]):
    """A field that holds `Held` and may be given `Given`."""

    if TYPE_CHECKING:

        def __get__(self, owner: object, kind: type | None = None) -> Held: ...

        def __set__(self, owner: object, value: Given) -> None: ...
