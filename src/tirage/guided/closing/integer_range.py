"""The integers between two bounds, as an expression over their digits."""

from __future__ import annotations

from tirage.guided.expression import DIGIT, Alternatives, Chars, Expression, LiteralText, Repeat, Sequence


def integers(low: int | None, high: int | None) -> Expression:
    """The integers from `low` to `high` in decimal, without leading zeros; None is no bound.

    As in llguidance, -0 is included if there are two bounds and 0 lies between them.
    """
    alternatives: list[Expression] = []
    if low is None or low < 0:
        zero = 0 if low is not None and high is not None else 1
        least = zero if high is None or high >= 0 else -high
        alternatives.append(Sequence((LiteralText("-"), naturals(least, None if low is None else -low))))
    if high is None or high >= 0:
        alternatives.append(naturals(max(low or 0, 0), high))
    return Alternatives(tuple(alternatives))


def naturals(low: int, high: int | None) -> Expression:
    """The integers from `low` >= 0 to `high`."""
    if high is not None and high < low:
        return Alternatives(())
    if high is None:
        size = len(str(low))
        longer = Sequence((Chars(((49, 57),)), Repeat(Chars(DIGIT), size, None)))
        return Alternatives((equally_long(str(low), "9" * size), longer))
    sizes = range(len(str(low)), len(str(high)) + 1)
    return Alternatives(tuple(
        equally_long(str(max(low, 10 ** (size - 1) if size > 1 else 0)), str(min(high, 10**size - 1))) for size in sizes
    ))  # fmt: skip


def equally_long(low: str, high: str) -> Expression:
    """The integers between two bounds that have the same number of digits."""
    if low == high:
        return LiteralText(low)
    rest = len(low) - 1
    if low == "0" * len(low) and high == "9" * len(high):
        return Repeat(Chars(DIGIT), len(low), len(low))
    if low[0] == high[0]:
        return Sequence((LiteralText(low[0]), equally_long(low[1:], high[1:])))
    if not rest:
        return Chars(((ord(low), ord(high)),))
    alternatives = [
        Sequence((LiteralText(low[0]), equally_long(low[1:], "9" * rest))),
        Sequence((LiteralText(high[0]), equally_long("0" * rest, high[1:]))),
    ]
    if ord(high[0]) - ord(low[0]) > 1:
        middle = Chars(((ord(low[0]) + 1, ord(high[0]) - 1),))
        alternatives.insert(1, Sequence((middle, Repeat(Chars(DIGIT), rest, rest))))
    return Alternatives(tuple(alternatives))
