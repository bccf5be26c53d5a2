"""The string formats of JSON Schema 2020-12, each made from the grammar of its standard.

Most are patterns of ECMA-262. Where only a part of a text is counted, that part is an intersection: of a whole text the
library would follow both sides side by side.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping
from functools import cache

from tirage.errors import GrammarError, nearest
from tirage.guided.regular.charset import merged
from tirage.guided.regular.ecma_regex import PatternTranslator
from tirage.guided.regular.ecma_syntax import parse_ecma
from tirage.guided.regular.expression import Expression, choice, intersection, sequence, text

_ANY = r"[^]"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"(?:{_OCTET}\.){{3}}{_OCTET}"
_GROUP = "[0-9A-Fa-f]{1,4}"


@cache
def format_expression(name: str) -> Expression:
    """The strings of a format, whole; GrammarError for a format that is not in `FORMATS`."""
    if name not in FORMATS:
        raise GrammarError(f"format must be one of {', '.join(FORMATS)}, got {name!r}{nearest(name, FORMATS)}")
    given = FORMATS[name]()
    found = _read(given) if isinstance(given, str) else given
    _READ.add(found)
    return found


def _read(pattern: str) -> Expression:
    """The texts that match a pattern from their beginning to their end."""
    return PatternTranslator(parse_ecma(f"^(?:{pattern})$")).strings()


_READ = set[Expression]()


def is_format(node: Expression) -> bool:
    """Whether an expression is that of a format as it is, which some strings have."""
    return node in _READ


# --- dates and times: RFC 3339 ---------------------------------------------------------------------------------------


_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"


def date() -> str:
    """Dates of the years 0001 to 9999 in the Gregorian calendar, with its leap years."""
    long, short = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])", "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    month_and_day = f"{long}|{short}|02-(?:0[1-9]|1[0-9]|2[0-8])"
    fours = "0[48]|[2468][048]|[13579][26]"
    leap = f"[0-9]{{2}}(?:{fours})|(?:{fours})00"
    return f"(?:{_YEAR}-(?:{month_and_day})|(?:{leap})-02-29)"


def time() -> str:
    """Times with an offset; a leap second only where it is 23:59:60 in UTC, with an offset of full or half hours."""
    return f"{_usual_time()}|{_leap_second_today()}|{_leap_second_tomorrow()}"


def date_time() -> str:
    """A date and a time; a leap second only at the end of June or December in UTC, as RFC 3339, 5.7, has it."""
    today, tomorrow = "(?:06-30|12-31)", "(?:07-01|01-01)"
    leaps = f"{_YEAR}-(?:{today}[Tt](?:{_leap_second_today()})|{tomorrow}[Tt](?:{_leap_second_tomorrow()}))"
    return f"{date()}[Tt]{_usual_time()}|{leaps}"


_FRACTION = r"(?:\.[0-9]+)?"
_HOUR, _MINUTE = "(?:[01][0-9]|2[0-3])", "[0-5][0-9]"


def _usual_time() -> str:
    return f"{_HOUR}:{_MINUTE}:{_MINUTE}{_FRACTION}(?:[Zz]|[+-]{_HOUR}:{_MINUTE})"


def _leap_second_today() -> str:
    """A leap second where the local date is that of UTC: no offset, or one to the west."""
    return f"23:59:60{_FRACTION}(?:[Zz]|[+]00:00)|{_leap_seconds('-', -1, range(0, 1440, 30))}"


def _leap_second_tomorrow() -> str:
    """A leap second where the local date is one day ahead: an offset to the east."""
    return _leap_seconds("[+]", 1, range(30, 1440, 30))


def _leap_seconds(sign: str, direction: int, offsets: range) -> str:
    """Leap seconds with offsets in minutes. All offsets would give 43,000 texts, which only look alike."""
    return "|".join(
        f"{local // 60:02}:{local % 60:02}:60{_FRACTION}{sign}{offset // 60:02}:{offset % 60:02}"
        for offset in offsets
        for local in ((1439 + direction * offset) % 1440,)
    )


def duration() -> str:
    """Durations: RFC 3339, appendix A."""
    seconds, minutes = "[0-9]+S", "[0-9]+M(?:[0-9]+S)?"
    time_part = f"T(?:[0-9]+H(?:{minutes})?|{minutes}|{seconds})"
    month = "[0-9]+M(?:[0-9]+D)?"
    return f"P(?:(?:[0-9]+Y(?:{month})?|{month}|[0-9]+D)(?:{time_part})?|{time_part}|[0-9]+W)"


# --- hosts and addresses ---------------------------------------------------------------------------------------------


def ipv4() -> str:
    """Addresses in dotted decimals: RFC 2673, 3.2."""
    return _IPV4


def ipv6() -> Expression:
    """Addresses as RFC 4291, 2.2, writes them, without a zone."""
    whole = f"(?:{_GROUP}:){{6}}(?:{_GROUP}:{_GROUP}|{_IPV4})"
    shortened = f"(?:{_GROUP}(?::{_GROUP})*)?::(?:(?:{_GROUP}:)*(?:{_GROUP}|{_IPV4}))?"
    # At most 7 groups beside the `::`, of which an address in dotted decimals takes the place of two.
    counted = ":*(?:[0-9A-Fa-f]+:*){0,5}(?:[0-9.]+|(?:[0-9A-Fa-f]+:*){0,2})"
    return choice([_read(whole), intersection([_read(shortened), _read(counted)])])


_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"


def hostname() -> str:
    """Host names of RFC 1123, at most 253 characters, without labels in Punycode (`xn--`)."""
    return rf"(?=[A-Za-z0-9.-]{{1,253}}$)(?!(?:{_ANY}*\.)?[Xx][Nn]--)(?:{_LABEL}\.)*{_LABEL}"


def idn_hostname() -> str:
    """Host names with labels in any script written from left to right, where every character is a letter or digit.

    A label beyond ASCII has at most 10 characters, so that its Punycode has at most 63. Combining marks, characters
    that depend on their neighbours, and scripts written from right to left are left out (RFC 5892, RFC 5893).
    """
    others = (point for low, high in _ALPHABETS for point in range(low, high) if is_plain_letter(chr(point)))
    letters = f"[{class_of(others)}\\u3400-\\u4dbf\\u4e00-\\u9fff\\uac00-\\ud7a3a-z0-9]"
    return rf"(?=[^\u0000-\u001f\u0022\u005c]{{1,60}}$)(?:{letters}{{1,10}}\.)*{letters}{{1,10}}|{hostname()}"


_ALPHABETS = ((0x80, 0x3400), (0xA000, 0xAC00), (0xF900, 0xFE00))


def is_plain_letter(char: str) -> bool:
    """Whether a character may stand anywhere in a label of an internationalised host name, whatever is beside it."""
    if unicodedata.category(char) not in {"Ll", "Lo", "Lm"} or unicodedata.bidirectional(char) != "L":
        return False
    stable = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", char).casefold())
    disallowed = "\u302e\u302f\u3031\u3032\u3033\u3034\u3035\u303b\u0640\u07fa"
    jamo = 0x1100 <= ord(char) <= 0x11FF or 0xA960 <= ord(char) <= 0xA97F or 0xD7B0 <= ord(char) <= 0xD7FF
    return (stable == char or char in "\xdf\u03c2") and char not in disallowed and not jamo


def class_of(points: Iterable[int]) -> str:
    """Code points as the inside of a character class."""
    return "".join(f"\\u{{{low:x}}}-\\u{{{high:x}}}" for low, high in merged((point, point) for point in points))


def email() -> Expression:
    """Mailboxes of RFC 5321, 4.1.2, with at most 64 characters before the `@` and 255 after it."""
    return _mailbox(r"A-Za-z0-9!#$%&'*+\-\/=?^_`{|}~", rf"(?:{_LABEL}\.)*{_LABEL}", beyond="")


def idn_email() -> Expression:
    """Mailboxes of RFC 6531: characters beyond ASCII before the `@`, an `idn-hostname` after it."""
    beyond = r"\u{80}-\u{10ffff}"
    return _mailbox(rf"A-Za-z0-9!#$%&'*+\-\/=?^_`{{|}}~{beyond}", idn_hostname(), beyond=beyond)


def _mailbox(atom: str, domain: str, *, beyond: str) -> Expression:
    # Lengths are counted over characters that may be there, and inside of quotes, since llguidance takes long to count
    # any at all.
    plain = intersection([_read(f"[{atom}.]{{1,64}}"), _read(rf"[{atom}]+(?:\.[{atom}]+)*")])
    inside = intersection([_read(f"[ -~{beyond}]{{0,62}}"), _read(rf"(?:[ !#-\[\]-~{beyond}]|\\[ -~])*")])
    local = choice([plain, sequence([text('"'), inside, text('"')])])
    host = intersection([_read(f"[ -?A-~{beyond}]{{1,255}}"), _read(domain)])
    address = choice([sequence([text("["), _read(_IPV4), text("]")]), sequence([text("[IPv6:"), ipv6(), text("]")])])
    return sequence([local, text("@"), choice([host, address])])


def uuid() -> str:
    """Universally unique identifiers: RFC 4122, without a prefix."""
    return "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"


# --- identifiers of resources: RFC 3986, 3987 and 6570 ---------------------------------------------------------------

_UCS = r"\u{a0}-\u{d7ff}\u{f900}-\u{fdcf}\u{fdf0}-\u{ffef}" + "".join(
    f"\\u{{{plane:x}{'1000' if plane == 14 else '0000'}}}-\\u{{{plane:x}fffd}}" for plane in range(1, 15)
)
_PRIVATE = r"\u{e000}-\u{f8ff}\u{f0000}-\u{ffffd}\u{100000}-\u{10fffd}"
_PERCENT = "%[0-9A-Fa-f]{2}"
_UNRESERVED = r"A-Za-z0-9\-._~"
_SUB_DELIMITERS = "!$&'()*+,;="


def uri() -> Expression:
    """URIs with a scheme: RFC 3986, 3."""
    return _with_scheme(beyond="", private="")


def uri_reference() -> Expression:
    """URIs and relative references: RFC 3986, 4.1."""
    return choice([_with_scheme(beyond="", private=""), _relative(beyond="", private="")])


def iri() -> Expression:
    """IRIs with a scheme: RFC 3987, 2.2."""
    return _with_scheme(beyond=_UCS, private=_PRIVATE)


def iri_reference() -> Expression:
    """IRIs and relative references: RFC 3987, 2.2."""
    return choice([_with_scheme(beyond=_UCS, private=_PRIVATE), _relative(beyond=_UCS, private=_PRIVATE)])


def _with_scheme(*, beyond: str, private: str) -> Expression:
    segment = _one_of(f"{_UNRESERVED}{_SUB_DELIMITERS}:@{beyond}")
    scheme = _read("[A-Za-z][A-Za-z0-9+\\-.]*:")
    return sequence([scheme, _hierarchy(segment, segment, beyond), _tail(beyond, private)])


def _relative(*, beyond: str, private: str) -> Expression:
    segment = _one_of(f"{_UNRESERVED}{_SUB_DELIMITERS}:@{beyond}")
    first = _one_of(f"{_UNRESERVED}{_SUB_DELIMITERS}@{beyond}")
    return sequence([_hierarchy(first, segment, beyond), _tail(beyond, private)])


def _hierarchy(first: str, segment: str, beyond: str) -> Expression:
    """An authority and a path, or a path whose first segment, where no slash stands before it, is of `first`."""
    path = rf"\/(?:{segment}+(?:\/{segment}*)*)?|{first}+(?:\/{segment}*)*|"
    return choice([sequence([_authority(beyond), _read(rf"(?:\/{segment}*)*")]), _read(path)])


def _authority(beyond: str) -> Expression:
    user = _one_of(f"{_UNRESERVED}{_SUB_DELIMITERS}:{beyond}")
    name = _one_of(f"{_UNRESERVED}{_SUB_DELIMITERS}{beyond}")
    future = f"[Vv][0-9A-Fa-f]+\\.[{_UNRESERVED}{_SUB_DELIMITERS}:]+"
    address = sequence([text("["), choice([ipv6(), _read(future)]), text("]")])
    return sequence([_read(rf"\/\/(?:{user}*@)?"), choice([address, _read(f"{name}*")]), _read("(?::[0-9]*)?")])


def _tail(beyond: str, private: str) -> Expression:
    inside = f"{_UNRESERVED}{_SUB_DELIMITERS}:@\\/?{beyond}"
    return _read(rf"(?:\?{_one_of(inside + private)}*)?(?:#{_one_of(inside)}*)?")


def _one_of(characters: str) -> str:
    """One of the characters, or one that is percent-encoded."""
    return f"(?:[{characters}]|{_PERCENT})"


def uri_template() -> str:
    """Templates of RFC 6570, without the operators that it reserves."""
    literal = _one_of(rf"!#$&'-;=?-\[\]_a-z~{_UCS}{_PRIVATE}")
    char = f"(?:[A-Za-z0-9_]|{_PERCENT})"
    variable = rf"{char}(?:\.?{char})*(?::[1-9][0-9]{{0,3}}|\*)?"
    return rf"(?:{literal}|\{{[+#.\/;?&]?{variable}(?:,{variable})*\}})*"


def json_pointer() -> str:
    """Pointers of RFC 6901, as strings."""
    return r"(?:\/(?:[^~\/]|~[01])*)*"


def relative_json_pointer() -> str:
    """A number of levels up, and a pointer or `#`."""
    return f"(?:0|[1-9][0-9]*)(?:#|{json_pointer()})"


def regex() -> str:
    """Patterns of ECMA-262 that are valid with and without the flag `u`.

    Groups are nested at most two levels deep; ranges go from one letter or digit to another of its kind, and counts
    have at most two digits. Groups have no names, and nothing refers to one.
    """
    escape = r"\\(?:[dDwWsStnvfr^$\\.*+?()[\]{}|\/]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4})"
    ranges = "|".join(
        f"{low}-[{low}-{letters[-1]}]"
        for letters in ("0123456789", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
        for low in letters
    )
    inside = rf"(?:{ranges}|[^\]\\\-^]|{escape}|\\-)"
    a_class = rf"\[\^?-?{inside}*-?\]"
    counts = "|".join(f"{low},(?:[{low}-9]|[1-9][0-9])" for low in range(10))
    quantifier = rf"(?:(?:[*+?]|\{{(?:[0-9]{{1,2}},?|{counts})\}})\??)?"
    atom = rf"[^\^$\\.*+?()\[\]{{}}|\/]|\.|{escape}|{a_class}"
    pattern = rf"(?:(?:{atom}){quantifier}|\^|\$|\\[bB]|\|)*"
    for _ in range(2):
        group = rf"\((?:\?:)?{pattern}\)"
        look = rf"\(\?[=!]{pattern}\)"
        pattern = rf"(?:(?:{atom}|{group}){quantifier}|{look}|\^|\$|\\[bB]|\|)*"
    return pattern


FORMATS: Mapping[str, Callable[[], str | Expression]] = {
    "date": date,
    "date-time": date_time,
    "duration": duration,
    "email": email,
    "hostname": hostname,
    "idn-email": idn_email,
    "idn-hostname": idn_hostname,
    "ipv4": ipv4,
    "ipv6": ipv6,
    "iri": iri,
    "iri-reference": iri_reference,
    "json-pointer": json_pointer,
    "regex": regex,
    "relative-json-pointer": relative_json_pointer,
    "time": time,
    "uri": uri,
    "uri-reference": uri_reference,
    "uri-template": uri_template,
    "uuid": uuid,
}
"""Name -> the pattern of the whole string, or its expression."""
