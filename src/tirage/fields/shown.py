"""Values as error messages show them."""

from __future__ import annotations

import enum
import reprlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from tirage.fields.frozen import FrozenDict, FrozenList


@dataclass(frozen=True, slots=True)
class Hidden:
    """Stands for a value that no error may show; `text` is what they say instead."""

    text: str


class _Shown(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxlong = self.maxother = 48
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = 4

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= 128 else f"an integer of {x.bit_length()} bits"

    def repr_instance(self, x: Any, level: int) -> str:
        if isinstance(x, Hidden):
            return x.text
        if isinstance(x, np.generic):
            return self.repr1(x.item(), level) if x.item() is not x else type(x).__name__
        if x is None or isinstance(x, (bool, float, complex, bytes, enum.Enum)):
            return repr(x)[: self.maxother]
        # Lists and dicts of our own alone: a stranger's class might fail where it is read.
        if isinstance(x, FrozenList):
            return self.repr_list(x, level)
        if isinstance(x, FrozenDict):
            return self.repr_dict(x, level)
        return f"a value of type {type(x).__name__}"


_shown = _Shown()


def shown(value: object) -> str:
    """A short picture of `value` for an error message: never long, never a memory address."""
    return _shown.repr(value)
