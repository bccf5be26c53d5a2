"""Which watermark a text carries: the scheme, its secret key, and the options of the scheme."""

# ruff: noqa: RUF009 - param() returns a dataclass field, as dataclasses.field() does.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Any, ClassVar

from tirage.errors import ParamsError
from tirage.fields.accepts import Accepts, Boolean, Integer, Number
from tirage.fields.record import Record, check_fields, param, specs
from tirage.fields.rules import Bool, BrokenRuleError, Custom, Float, Int, OneOf
from tirage.fields.shown import Hidden, shown

SCHEMES = ("gumbel", "kgw", "synthid")
MOST_KEYS = 64
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "gumbel": ("context_width",),
    "kgw": ("context_width", "bias", "greenlist_ratio", "seeding_scheme"),
    "synthid": (
        "ngram_len",
        "context_history_size",
        "sampling_table_seed",
        "sampling_table_size",
        "skip_first_ngram_calls",
    ),
}
_KEY_RULES = {
    "gumbel": "an integer in [0, 2^64)",
    "kgw": "an integer in [1, 2^63)",
    "synthid": f"a list of 1 to {MOST_KEYS} integers in [0, 2^63), one for each layer of the tournament",
}
_KEY_RANGES = {"gumbel": (0, 2**64), "kgw": (1, 2**63), "synthid": (0, 2**63)}
_WIDTHS = {"gumbel": 4, "kgw": 1}
HIDDEN = "<hidden>"


def kind_of(value: Any) -> Hidden:
    """What an error shows of a key: its kind and size, never the key."""
    if type(value) is int:
        return Hidden("a negative integer" if value < 0 else f"an integer of {value.bit_length()} bits")
    if isinstance(value, (list, tuple)):
        bad = next((i for i, each in enumerate(value) if type(each) is not int or not 0 <= each < 2**63), None)
        return Hidden(
            f"a list of {len(value)}" if bad is None else f"{kind_of(value[bad]).text} as item {bad} of a list"
        )
    return Hidden("none" if value is None else f"a value of type {type(value).__name__}")


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _thawed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Watermark(Record):
    """A watermark: `scheme` "gumbel", "kgw" or "synthid", its secret `key`, and the options of that scheme.

    An option of another scheme is refused by name. `repr` and errors never show the key; `to_dict` holds it, as
    `from_dict` needs it. Who knows the key can detect the watermark, and imitate it.
    """

    scheme: str = param(MISSING, OneOf(SCHEMES), "how the text is marked", source="tirage", remedy="name a scheme")
    key: Accepts[int | tuple[int, ...], Integer | Sequence[int]] = param(
        MISSING,
        Custom("an integer, or for 'synthid' a list of integers", _frozen, _thawed, lambda plain: plain),
        "the secret: an integer, of 64 random bits at best; for 'synthid' a list of integers, one for each layer",
        source="transformers",
        remedy="secrets.randbits(63) makes one",
    )
    context_width: Accepts[int | None, Integer | None] = param(
        None,
        Int(low=1, high=64, optional=True),
        "tokens before a token on which its mark depends; None is 4 for 'gumbel' and 1 for 'kgw'",
        source="transformers",
        off=None,
    )
    bias: Accepts[float, Number] = param(
        2.0,
        Float(low=0.0, high=20.0, open_low=True),
        "'kgw': what is added to the logits of green tokens",
        source="transformers",
    )
    greenlist_ratio: Accepts[float, Number] = param(
        0.25,
        Float(low=0.0, high=1.0, open_low=True, open_high=True),
        "'kgw': share of the vocabulary that is green",
        source="transformers",
    )
    seeding_scheme: str = param(
        "lefthash",
        OneOf(("lefthash", "selfhash")),
        "'kgw': whether the green list depends on the tokens before, or on the token itself too",
        source="transformers",
    )
    ngram_len: Accepts[int, Integer] = param(
        5,
        Int(low=2, high=64),
        "'synthid': tokens that are hashed together, the new one included",
        source="transformers",
    )
    context_history_size: Accepts[int, Integer] = param(
        1024,
        Int(low=1, high=1 << 20),
        "'synthid': contexts that are remembered; a token after one of them is not marked again",
        source="transformers",
    )
    sampling_table_seed: Accepts[int, Integer] = param(
        0, Int(low=-(2**63), high=2**63 - 1), "'synthid': seed of the table of g-values", source="transformers"
    )
    sampling_table_size: Accepts[int, Integer] = param(
        1 << 16, Int(low=2, high=1 << 24), "'synthid': entries of the table of g-values", source="transformers"
    )
    skip_first_ngram_calls: Accepts[bool, Boolean] = param(
        False,
        Bool(),
        "'synthid': leave the first `ngram_len` - 1 tokens unmarked",
        source="transformers",
        off=False,
    )

    other_names: ClassVar[Mapping[str, str]] = {
        "hashing_key": "did you mean 'key'?",
        "keys": "did you mean 'key'?",
        "delta": "did you mean 'bias'?",
        "gamma": "did you mean 'greenlist_ratio'?",
    }

    def __post_init__(self) -> None:
        check_fields(self)
        try:
            _check_together({name: getattr(self, name) for name in specs(Watermark)})
        except BrokenRuleError as broken:
            got = f"{broken.where[1:]} must be {broken.rule}, got {shown(broken.value)}"
            raise ParamsError(f"{got}; {broken.remedy}") from None

    def __repr__(self) -> str:
        shown = "".join(f", {name}={getattr(self, name)!r}" for name in _OPTIONS[self.scheme])
        return f"Watermark(scheme={self.scheme!r}, key={HIDDEN}{shown})"

    @property
    def width(self) -> int:
        """The tokens before a token on which its mark depends, the scheme's own number where none is given."""
        if self.scheme == "synthid":
            return self.ngram_len - 1
        return self.context_width or _WIDTHS[self.scheme]

    @property
    def keys(self) -> tuple[int, ...]:
        """The key as a tuple."""
        return self.key if isinstance(self.key, tuple) else (self.key,)

    def to_dict(self) -> dict[str, Any]:
        """The scheme, the key and the scheme's options as plain JSON values; `from_dict` is its inverse."""
        plain = Record.to_dict(self)
        return {name: plain[name] for name in ("scheme", "key", *_OPTIONS[self.scheme])}

    def to_public_dict(self) -> dict[str, Any]:
        """`to_dict` with null for the key: what records, explanations and answers show."""
        return {**self.to_dict(), "key": None}


def _check_together(values: Mapping[str, Any]) -> None:
    scheme = values["scheme"]
    _check_key(scheme, values["key"])
    for name, spec in specs(Watermark).items():
        own = name in ("scheme", "key", *_OPTIONS[scheme])
        if not own and values[name] != spec.default:
            raise BrokenRuleError(
                f"left out with scheme {scheme!r}", values[name], f".{name}", remedy="it belongs to another scheme"
            )


def _check_key(scheme: str, key: Any) -> None:
    low, high = _KEY_RANGES[scheme]
    keys = _frozen(key) if scheme == "synthid" else (key,)
    counted = isinstance(keys, tuple) and 0 < len(keys) <= MOST_KEYS
    if not counted or not all(type(each) is int and low <= each < high for each in keys):
        rule = f"{_KEY_RULES[scheme]} with scheme {scheme!r}"
        raise BrokenRuleError(rule, kind_of(key), ".key", remedy="secrets.randbits(63) makes one")


def read_watermark(plain: Any) -> Watermark | None:
    """The Watermark of a mapping, of a Watermark or of None.

    Raises BrokenRuleError, which never shows a key, for anything else and for a mapping that breaks a rule.
    """
    if plain is None or isinstance(plain, Watermark):
        return plain
    if not isinstance(plain, Mapping):
        raise BrokenRuleError("a Watermark, an object with its options, or None", kind_of(plain))
    table = specs(Watermark)
    for name in plain:
        if name not in table:
            hint = Watermark.other_names.get(name) if isinstance(name, str) else None
            raise BrokenRuleError(f"an object of known options, such as {', '.join(table)}", name, remedy=hint or "")
    values = {name: _checked(name, plain.get(name, spec.default)) for name, spec in table.items()}
    _check_together(values)
    return Watermark(**values)


def _checked(name: str, value: Any) -> Any:
    if value is MISSING or (name == "key" and value is None):
        raise BrokenRuleError("given", Hidden("none"), f".{name}", remedy="records and explanations never hold a key")
    try:
        return specs(Watermark)[name].rule.check(value)
    except BrokenRuleError as broken:
        raise BrokenRuleError(broken.rule, broken.value, f".{name}{broken.where}", remedy=broken.remedy) from None
