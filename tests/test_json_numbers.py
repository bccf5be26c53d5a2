"""JSON numbers within bounds, compared with `decimal` on both sides of every bound."""

from __future__ import annotations

import json
import random
import re
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from expression_texts import Texts

from tirage import GrammarError
from tirage.guided.json_schema.json_multiples import multiples
from tirage.guided.json_schema.json_numbers import constant, integers, numbers, spellings
from tirage.guided.regular.expression import NOTHING

_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
BIG = [2**53 + 1, 2**64 - 1, -(2**63) - 1, 10**30]


def random_bound(rng: random.Random) -> Decimal:
    if rng.random() < 0.2:
        return Decimal(rng.choice([0, 1, -1, 9, 10, 99, 100, *BIG]))
    return Decimal(rng.randint(-(10 ** rng.randrange(1, 6)), 10 ** rng.randrange(1, 6))).scaleb(-rng.randrange(4))


def near(rng: random.Random, bound: Decimal | None) -> str:
    """A number at a bound or a little beside it, spelled with or without zeros at its end."""
    with localcontext(prec=60):
        value = (bound or Decimal(0)) + rng.choice([0, 0, 1, -1]) * Decimal(10) ** rng.randint(-5, 3)
    text = f"{value:f}"
    zeros = rng.choice(["", "", "0", "00"])
    return text + (zeros if "." in text else f".{zeros}" if zeros else "")


@pytest.mark.slow
def test_numbers_keep_to_their_bounds_exactly() -> None:
    rng = random.Random(11)
    for _ in range(80):
        low, high = (random_bound(rng) if rng.random() < 0.85 else None for _ in range(2))
        if low is not None and high is not None and low > high:
            low, high = high, low
        open_low, open_high = rng.random() < 0.4, rng.random() < 0.4
        texts = Texts(numbers(low, high, open_low=open_low, open_high=open_high))
        whole = Texts(integers(None if low is None else int(low), None if high is None else int(high)))
        for _ in range(30):
            text = near(rng, rng.choice([low, high]))
            value = Decimal(text)
            above = low is None or value > low or (value == low and not open_low)
            below = high is None or value < high or (value == high and not open_high)
            assert (text in texts) == (above and below), (low, high, open_low, open_high, text)
            within = (low is None or value >= int(low)) and (high is None or value <= int(high))
            assert (text in whole) == (within and "." not in text), (low, high, text)


@pytest.mark.parametrize(
    "text", ["1e5", "1.5E-3", "0e9", "-0.0e+1", "-1e5", "00", "01", "+1", ".5", "1.", "-", "1e", "0x1"]
)
def test_numbers_without_bounds_or_beside_zero_have_exponents(text: str) -> None:
    try:
        value = None if text[:1] in {"+", "."} or text.startswith("0x") else json.loads(text)
    except ValueError:
        value = None
    assert (text in Texts(numbers())) == (value is not None)
    assert (text in Texts(numbers(0))) == (value is not None and value >= 0)
    assert (text in Texts(numbers(0, open_low=True))) == (value is not None and value > 0)
    assert (text in Texts(numbers(None, 0, open_high=True))) == (value is not None and value < 0)
    assert (text in Texts(numbers(exponents=False))) == (value is not None and "e" not in text.lower())


@pytest.mark.slow
def test_a_constant_has_the_spellings_of_python_and_of_javascript_and_no_other_value() -> None:
    rng = random.Random(4)
    values: list[int | float] = [0, -0.0, 1, -5, 1e22, 1e-7, 5e-324, 1.7976931348623157e308, *BIG]
    values += [rng.uniform(-1, 1) * 10.0 ** rng.randint(-25, 25) for _ in range(60)]
    values += [rng.randint(-(10**20), 10**20) for _ in range(40)]
    for value in values:
        texts = Texts(constant(value))
        assert json.dumps(value) in texts, value
        exact = Decimal(repr(value))
        beside = [
            f"{exact.next_plus():f}",
            f"{exact.next_minus():f}",
            str(value).replace("1", "2", 1),
            f"{value}0",
            f"1{value}",
        ]
        for text in beside:
            assert text not in texts or Decimal(text) == exact, text
    assert "9007199254740992" not in Texts(constant(2**53 + 1))
    assert "18446744073709552000" not in Texts(constant(2**64 - 1))
    assert "1.0" in Texts(constant(1))
    assert "1" in Texts(constant(Decimal("1.00")))
    for text in ("1e22", "1E+22", "10000000000000000000000"):
        assert text in Texts(constant(10**22))


def test_every_spelling_without_an_exponent() -> None:
    assert all(text in Texts(spellings(Decimal("-1.5"))) for text in ("-1.5", "-1.50", "-1.500"))
    assert all(text in Texts(spellings(0)) for text in ("0", "-0", "0.0", "-0.00"))
    assert not any(text in Texts(spellings(1)) for text in ("-1", "1.01", "10", "01", "0.1"))


MULTIPLES = [
    "1",
    "2",
    "3",
    "5",
    "7",
    "10",
    "11",
    "24",
    "60",
    "100",
    "365",
    "0.01",
    "0.1",
    "0.25",
    "2.5",
    "0.003",
    "1e-6",
]


@pytest.mark.slow
@pytest.mark.parametrize("of", MULTIPLES)
def test_multiples_are_those_that_division_finds(of: str) -> None:
    rng, step = random.Random(of), Decimal(of)
    low, high = Decimal(rng.randint(-500, 0)), Decimal(rng.randint(1, 5000))
    whole = step == int(step)
    for bounds in ((None, None), (Decimal(0), None), (low, high)):
        within = (
            integers(*(None if b is None else int(b) for b in bounds)) if whole else numbers(*bounds, exponents=False)
        )
        texts, inside = Texts(multiples(step, within)), Texts(within)
        for _ in range(120):
            value = step * rng.randint(-300, 300) + (rng.choice([0, 1, -1]) * Decimal(10) ** rng.randint(-4, 1))
            text = f"{value:f}" + rng.choice(["", "", "0"])
            if _DECIMAL.fullmatch(text):
                expected = text in inside and Fraction(text) % Fraction(of) == 0
                assert (text in texts) == expected, (bounds, text)


def test_multiples_of_large_primes_are_refused() -> None:
    with pytest.raises(GrammarError, match="multipleOf must be simpler, got 10000019"):
        multiples(10_000_019, integers())


def test_numbers_that_cannot_be_are_refused() -> None:
    assert integers(5, 4) == NOTHING
    assert numbers(1, 1, open_low=True) == NOTHING
    for value in (float("nan"), float("inf"), Decimal("1e401"), 10**401):
        with pytest.raises(GrammarError, match="number must be finite and have at most 400 digits"):
            constant(value)
