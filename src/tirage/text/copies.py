"""Copies of the state of one text, of which a request may hold hundreds."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def twin(original: T) -> T:
    """A shallow copy of an object without slots, as `copy.copy` makes it, in half the time and less memory.

    Attributes that are set one by one in the order of the original share the table of their names with it.
    """
    made = object.__new__(type(original))
    for name, value in vars(original).items():
        setattr(made, name, value)
    return made
