"""Sets of characters that ECMA-262's property escapes name, from the tables that come with Python."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable
from functools import lru_cache

from tirage.guided.regular.charset import EVERY, Ranges, merged

_CATEGORIES = """
C Other; Cc Control cntrl; Cf Format; Cn Unassigned; Co Private_Use; Cs Surrogate; L Letter; LC Cased_Letter;
Ll Lowercase_Letter; Lm Modifier_Letter; Lo Other_Letter; Lt Titlecase_Letter; Lu Uppercase_Letter;
M Mark Combining_Mark; Mc Spacing_Mark; Me Enclosing_Mark; Mn Nonspacing_Mark; N Number; Nd Decimal_Number digit;
Nl Letter_Number; No Other_Number; P Punctuation punct; Pc Connector_Punctuation; Pd Dash_Punctuation;
Pe Close_Punctuation; Pf Final_Punctuation; Pi Initial_Punctuation; Po Other_Punctuation; Ps Open_Punctuation;
S Symbol; Sc Currency_Symbol; Sk Modifier_Symbol; Sm Math_Symbol; So Other_Symbol; Z Separator; Zl Line_Separator;
Zp Paragraph_Separator; Zs Space_Separator
"""
_CATEGORY = {alias: names.split()[0] for names in _CATEGORIES.split(";") for alias in names.split()}
_HEX: Ranges = ((48, 57), (65, 70), (97, 102))
_WIDE_HEX: Ranges = ((0xFF10, 0xFF19), (0xFF21, 0xFF26), (0xFF41, 0xFF46))
_SPACE: Ranges = (
    (9, 13), (32, 32), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
    (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000),
)  # fmt: skip
_BINARY: dict[str, Ranges] = {
    "Any": EVERY, "ASCII": ((0, 127),), "ASCII_Hex_Digit": _HEX, "AHex": _HEX, "Hex_Digit": _HEX + _WIDE_HEX,
    "Hex": _HEX + _WIDE_HEX, "White_Space": _SPACE, "space": _SPACE,
}  # fmt: skip
_CASED = {"Lowercase": str.islower, "Lower": str.islower, "Uppercase": str.isupper, "Upper": str.isupper}


@lru_cache(maxsize=256)
def characters_of(property_name: str) -> Ranges | None:
    """The characters with a property, named as in `\\p{...}`; None for a name that is unknown or has no table here.

    Known are the general categories (`L`, `Letter`, `gc=Lu`), `Any`, `Assigned`, `ASCII`, `White_Space`, `Lowercase`,
    `Uppercase` and the hexadecimal digits, in the version of Unicode that Python has (`unicodedata.unidata_version`).
    """
    key, _, value = property_name.partition("=")
    if value:
        return _in_category(_CATEGORY[value]) if key in {"gc", "General_Category"} and value in _CATEGORY else None
    if key in _CATEGORY:
        return _in_category(_CATEGORY[key])
    if key == "Assigned":
        return _such_that(lambda char: unicodedata.category(char) != "Cn")
    return _such_that(_CASED[key]) if key in _CASED else _BINARY.get(key)


def _in_category(category: str) -> Ranges:
    wanted = ("Lu", "Ll", "Lt") if category == "LC" else (category,)
    return _such_that(lambda char: unicodedata.category(char).startswith(wanted))


def _such_that(holds: Callable[[str], bool]) -> Ranges:
    return merged((point, point) for point in range(sys.maxunicode + 1) if holds(chr(point)))
