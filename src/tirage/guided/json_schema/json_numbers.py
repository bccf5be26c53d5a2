"""JSON numbers as expressions: constants, and integers and decimals within bounds, compared exactly.

Numbers are written without an exponent, but where no bound other than 0 stands in its way. SPEC.md S-G11.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from tirage.errors import GrammarError
from tirage.guided.regular.expression import (
    DIGIT,
    EMPTY,
    NOTHING,
    Chars,
    Expression,
    LiteralText,
    Repeat,
    chars,
    choice,
    optional,
    sequence,
)
from tirage.recently_used import RecentlyUsed

Number = int | float | Decimal
MAX_DIGITS = 400
"""Most digits of a bound or constant, written without an exponent; a double has at most 309 before its point."""
_PYTHON_EXPONENT = -4, 15
_D = Chars(DIGIT)
_DIGITS, _MORE_DIGITS = Repeat(_D, 1, None), Repeat(_D, 0, None)
_WHOLE = choice([LiteralText("0"), sequence([chars("", ("1", "9")), _MORE_DIGITS])])
_MINUS = optional(LiteralText("-"))
_FRACTION = optional(sequence([LiteralText("."), _DIGITS]))
_EXPONENT = optional(sequence([chars("eE"), optional(chars("+-")), _DIGITS]))
_ZEROS = Repeat(LiteralText("0"), 0, None)
_ZERO = sequence([LiteralText("0"), optional(sequence([LiteralText("."), Repeat(LiteralText("0"), 1, None)]))])
_SOME_NOT_ZERO = sequence([_ZEROS, chars("", ("1", "9")), _MORE_DIGITS])
_RANGES: RecentlyUsed[Expression] = RecentlyUsed(most=64, size=2_000)
"""The ranges of integers used most recently, by the digits of their bounds."""


def constant(value: Number) -> Expression:
    """The spellings of one number: its digits, `.0` after an integer, and an exponent where Python writes one.

    Raises GrammarError for a number that is not finite or has more than 400 digits.
    """
    number = exact(value)
    minus = _MINUS if not number else LiteralText("-") if number < 0 else EMPTY
    whole, digits = split(number.copy_abs())
    texts: list[Expression] = [LiteralText(f"{whole}.{digits}" if digits else str(whole))]
    if not digits:
        texts.append(LiteralText(f"{whole}.0"))
    if number and not _PYTHON_EXPONENT[0] <= number.adjusted() <= _PYTHON_EXPONENT[1]:
        texts.append(_with_exponent(number.copy_abs()))
    return sequence([minus, choice(texts)])


def spellings(value: Number) -> Expression:
    """Every spelling of one number without an exponent: any number of zeros may end its digits after the point.

    Raises GrammarError for a number that is not finite or has more than 400 digits.
    """
    number = exact(value)
    return numbers(number, number, exponents=False)


def _with_exponent(number: Decimal) -> Expression:
    """A number as `d.ddde+d`; the sign of a positive exponent and a zero before a single digit may be left out."""
    digits = "".join(map(str, number.as_tuple().digits)).rstrip("0")
    exponent = number.adjusted()
    mantissa = f"{digits[0]}.{digits[1:]}" if digits[1:] else digits
    sign = LiteralText("-") if exponent < 0 else optional(LiteralText("+"))
    zero = optional(LiteralText("0")) if abs(exponent) < 10 else EMPTY
    return sequence([LiteralText(mantissa), chars("eE"), sign, zero, LiteralText(str(abs(exponent)))])


def integers(low: int | None = None, high: int | None = None) -> Expression:
    """The integers from `low` to `high`, both included, None being no bound; without fraction or exponent.

    Zero may have a minus sign where negative integers are allowed.
    """
    found = _RANGES.find((low, high))
    if found is None:
        found = _integers(low, high)
        _RANGES.put((low, high), found, len(f"{low}{high}"))
    return found


def _integers(low: int | None, high: int | None) -> Expression:
    if low is None and high is None:
        return sequence([_MINUS, _WHOLE])
    below = None if low is None else -low
    negative = naturals(max(1, -high) if high is not None else 1, below) if below is None or below > 0 else NOTHING
    positive = naturals(max(0, low or 0), high) if high is None or high >= 0 else NOTHING
    zero = LiteralText("-0") if (low is None or low < 0) and (high or 0) >= 0 else NOTHING
    return choice([sequence([LiteralText("-"), negative]), zero, positive])


def naturals(low: int, high: int | None) -> Expression:
    """The integers from `low`, which is at least 0, to `high`, without leading zeros."""
    if high is not None and high < low:
        return NOTHING
    parts: list[Expression] = []
    most = len(str(low)) if high is None else len(str(high))
    for count in range(len(str(low)), most + 1):
        least, greatest = 10 ** (count - 1) if count > 1 else 0, 10**count - 1
        parts.append(same_length(str(max(low, least)), str(greatest if high is None else min(high, greatest))))
    if high is None:
        parts.append(sequence([chars("", ("1", "9")), Repeat(_D, most, None)]))
    return choice(parts)


def same_length(low: str, high: str) -> Expression:
    """The digit strings from `low` to `high`, which have the same length."""
    if not low:
        return EMPTY
    if set(low) == {"0"} and set(high) == {"9"}:
        return _D if len(low) == 1 else Repeat(_D, len(low), len(low))
    first, last, rest = low[0], high[0], len(low) - 1
    if first == last:
        return sequence([LiteralText(first), same_length(low[1:], high[1:])])
    parts: list[Expression] = []
    if set(low[1:]) - {"0"}:
        parts.append(sequence([LiteralText(first), same_length(low[1:], "9" * rest)]))
        first = chr(ord(first) + 1)
    end = sequence([LiteralText(last), same_length("0" * rest, high[1:])]) if set(high[1:]) - {"9"} else None
    before = last if end is None else chr(ord(last) - 1)
    if first <= before:
        parts.append(sequence([chars("", (first, before)), same_length("0" * rest, "9" * rest)]))
    return choice([*parts, *([] if end is None else [end])])


@dataclass(frozen=True, slots=True)
class DecimalBound:
    """One end of a range of magnitudes: its integer part, its other digits, and `open` if it is left out itself."""

    whole: int
    digits: str
    open: bool


def numbers(
    low: Number | None = None,
    high: Number | None = None,
    *,
    open_low: bool = False,
    open_high: bool = False,
    exponents: bool = True,
) -> Expression:
    """The numbers from `low` to `high`, None being no bound; `open_low` and `open_high` leave the bound itself out.

    They may have an exponent if `exponents` is set and each bound is 0 or None. Raises GrammarError for a bound that
    is not finite or has more than 400 digits.
    """
    least, most = None if low is None else exact(low), None if high is None else exact(high)
    if exponents and not least and not most:
        return _signed(least, most, open_low, open_high)
    above = least is None or least < 0 or (not least and not open_low)
    below = most is None or most > 0 or (not most and not open_high)
    negative = above_zero(_negated(most), _negated(least), open_high, open_low)
    return choice([
        sequence([LiteralText("-"), negative]),
        sequence([_MINUS, _ZERO]) if above and below else NOTHING,
        above_zero(least, most, open_low, open_high),
    ])


def _negated(value: Decimal | None) -> Decimal | None:
    return None if value is None else value.copy_negate()


def above_zero(low: Decimal | None, high: Decimal | None, open_low: bool, open_high: bool) -> Expression:
    """The decimals between two bounds that are greater than 0."""
    if high is not None and high <= 0:
        return NOTHING
    floor = DecimalBound(0, "", True) if low is None or low <= 0 else bound(low, open_low)
    return magnitudes(floor, None if high is None else bound(high, open_high))


def _signed(low: Decimal | None, high: Decimal | None, open_low: bool, open_high: bool) -> Expression:
    """Numbers whose bounds are 0 or none: only their sign matters, so that they may have an exponent."""
    any_size = sequence([_WHOLE, _FRACTION, _EXPONENT])
    if low is None and high is None:
        return sequence([_MINUS, any_size])
    zero = sequence([_MINUS, _ZERO, _EXPONENT])
    some = choice([
        sequence([chars("", ("1", "9")), _MORE_DIGITS, _FRACTION, _EXPONENT]),
        sequence([LiteralText("0."), _SOME_NOT_ZERO, _EXPONENT]),
    ])
    parts = [sequence([LiteralText("-"), some])] if low is None else []
    parts += [some] if high is None else []
    left_out = (low is not None and open_low) or (high is not None and open_high)
    return choice([*parts, *([] if left_out else [zero])])


def magnitudes(low: DecimalBound, high: DecimalBound | None) -> Expression:
    """The decimals without a sign between two bounds."""
    if high is None:
        return choice([_with_fraction(low.whole, at_least(low.digits, low.open)), _wholes(low.whole + 1, None)])
    if high.whole < low.whole:
        return NOTHING
    if high.whole == low.whole:
        return _with_fraction(low.whole, between(low, high))
    return choice([
        _with_fraction(low.whole, at_least(low.digits, low.open)),
        _wholes(low.whole + 1, high.whole - 1),
        _with_fraction(high.whole, at_most(high.digits, high.open)),
    ])


def _wholes(low: int, high: int | None) -> Expression:
    return sequence([naturals(low, high), _FRACTION])


Fraction = tuple[bool, Expression]
"""Whether there may be no digits after the point, and which digits there may be otherwise."""


def _with_fraction(whole: int, fraction: Fraction) -> Expression:
    none, digits = fraction
    after = sequence([LiteralText("."), digits])
    return sequence([LiteralText(str(whole)), choice([*([EMPTY] if none else []), after])])


def at_least(digits: str, open_: bool) -> Fraction:
    """The fractions from 0.`digits` on; without it if `open_`."""
    if not digits:
        return (False, _SOME_NOT_ZERO) if open_ else (True, _DIGITS)
    above = _first_digit(ord(digits[0]) + 1, ord("9"), _MORE_DIGITS)
    return False, choice([_after(digits[0], at_least(digits[1:], open_)), above])


def at_most(digits: str, open_: bool) -> Fraction:
    """The fractions up to 0.`digits`; without it if `open_`."""
    if not digits:
        return (False, NOTHING) if open_ else (True, Repeat(LiteralText("0"), 1, None))
    below = _first_digit(ord("0"), ord(digits[0]) - 1, _MORE_DIGITS)
    return True, choice([below, _after(digits[0], at_most(digits[1:], open_))])


def between(low: DecimalBound, high: DecimalBound) -> Fraction:
    """The fractions that two bounds with the same integer part allow."""
    if not low.digits and not low.open:
        return at_most(high.digits, high.open)
    if not high.digits:
        return False, NOTHING
    first, last = low.digits[:1] or "0", high.digits[0]
    if first > last:
        return False, NOTHING
    rest = DecimalBound(0, low.digits[1:], low.open), DecimalBound(0, high.digits[1:], high.open)
    if first == last:
        return False, _after(first, between(*rest))
    return False, choice([
        _after(first, at_least(rest[0].digits, low.open)),
        _first_digit(ord(first) + 1, ord(last) - 1, _MORE_DIGITS),
        _after(last, at_most(rest[1].digits, high.open)),
    ])


def _after(digit: str, fraction: Fraction) -> Expression:
    none, digits = fraction
    return sequence([LiteralText(digit), choice([*([EMPTY] if none else []), digits])])


def _first_digit(low: int, high: int, rest: Expression) -> Expression:
    return sequence([Chars(((low, high),)), rest]) if low <= high else NOTHING


def bound(value: Decimal, open_: bool) -> DecimalBound:
    """A bound that is not negative."""
    whole, digits = split(value)
    return DecimalBound(whole, digits, open_)


def split(value: Decimal) -> tuple[int, str]:
    """The integer part of a number that is not negative, and its digits after the point without final zeros."""
    whole, _, digits = f"{value:f}".partition(".")
    return int(whole), digits.rstrip("0")


def exact(value: Number) -> Decimal:
    """The number as a decimal; a float stands for the shortest decimal that gives it.

    Raises GrammarError for a number that is not finite or has more than 400 digits.
    """
    number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if number.is_finite() and not number:
        return Decimal(0)
    if not number.is_finite() or abs(number.adjusted()) > MAX_DIGITS or len(number.as_tuple().digits) > MAX_DIGITS:
        raise GrammarError(f"number must be finite and have at most {MAX_DIGITS} digits, got {value!s:.60}")
    return number
