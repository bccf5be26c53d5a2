"""The string formats of JSON Schema, each against a checker that shares nothing with it, or against stated strings."""

from __future__ import annotations

import datetime
import ipaddress
import json
import random
import re
import urllib.parse
import uuid
from collections.abc import Callable
from functools import cache

import idna
import pytest
from expression_texts import Texts

from tirage import GrammarError
from tirage.guided.json_schema.formats import FORMATS, format_expression
from tirage.guided.json_schema.json_strings import json_string


@cache
def texts_of(name: str) -> Texts:
    return Texts(format_expression(name))


# --- against the standard library and idna ---------------------------------------------------------------------------

_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(\.\d+)?([Zz]|([+-])(\d\d):(\d\d))", re.ASCII)


def is_date(text: str) -> bool:
    try:
        return bool(re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII)) and bool(datetime.date.fromisoformat(text))
    except ValueError:
        return False


def utc_minute(text: str) -> tuple[int, int] | None:
    """Minute of the day in UTC, not yet wrapped, and second; None for what is no time of RFC 3339."""
    found = _TIME.fullmatch(text)
    if not found:
        return None
    hour, minute, second = map(int, found.groups()[:3])
    offset_hour, offset_minute = int(found[7] or 0), int(found[8] or 0)
    if hour > 23 or minute > 59 or second > 60 or offset_hour > 23 or offset_minute > 59:
        return None
    offset = (offset_hour * 60 + offset_minute) * (-1 if found[6] == "-" else 1)
    # A leap second is taken with offsets of full and half hours.
    return None if second == 60 and offset_minute % 30 else (hour * 60 + minute - offset, second)


def is_time(text: str) -> bool:
    found = utc_minute(text)
    return found is not None and (found[1] < 60 or found[0] % 1440 == 1439)


def is_date_time(text: str) -> bool:
    day, mark, rest = text[:10], text[10:11], text[11:]
    found = utc_minute(rest)
    if not is_date(day) or mark not in {"T", "t"} or found is None:
        return False
    minute, second = found
    if second < 60:
        return True
    utc_day = (
        datetime.datetime.fromisoformat(day) + datetime.timedelta(days=minute // 1440) if day > "0001-01-01" else None
    )
    return minute % 1440 == 1439 and utc_day is not None and f"{utc_day:%m-%d}" in {"06-30", "12-31"}


def is_ip(text: str, kind: Callable[[str], object]) -> bool:
    try:
        return "%" not in text and bool(kind(text))
    except ValueError:
        return False


def is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False


def is_hostname(text: str) -> bool:
    labels = text.split(".")
    return len(text) <= 253 and all(
        0 < len(one) <= 63
        and one[0] != "-" != one[-1]
        and re.fullmatch(r"[A-Za-z0-9-]+", one) is not None
        and not one.lower().startswith("xn--")
        for one in labels
    )


def is_pointer(text: str) -> bool:
    return not text or (text[0] == "/" and not text.replace("~0", "").replace("~1", "").count("~"))


CHECKERS: dict[str, Callable[[str], bool]] = {
    "date": is_date,
    "time": is_time,
    "date-time": is_date_time,
    "ipv4": lambda text: is_ip(text, ipaddress.IPv4Address),
    "ipv6": lambda text: is_ip(text, ipaddress.IPv6Address),
    "uuid": is_uuid,
    "hostname": is_hostname,
    "json-pointer": is_pointer,
}
# fmt: off
SEEDS = {
    "date": ["2024-02-29", "1900-02-28", "2000-12-31", "9999-10-10", "2023-06-30"],
    "time": ["23:59:60Z", "00:29:60+00:30", "15:59:60-08:00", "12:34:56.789+14:00", "08:59:60+09:00", "23:29:60-00:30"],
    "date-time": ["1998-12-31T23:59:60Z", "2017-01-01T08:59:60+09:00", "2024-02-29t12:00:00.5-05:30",
                  "2015-06-30T19:59:60-04:00", "2015-07-01T01:29:60.1+01:30"],
    "ipv4": ["127.0.0.1", "255.249.199.0", "10.20.30.40"],
    "ipv6": ["::", "1:2:3:4:5:6:7:8", "1::8", "::ffff:192.168.0.1", "1:2:3:4:5:6:1.2.3.4", "1:2:3:4:5:6:7::",
             "a:b::c:1.2.3.4"],
    "uuid": ["2eb8aa08-AA98-11ea-b4aa-73b441d16380"],
    "hostname": ["www.example.com", "a-b.c", "xn-a.co", "x--n.yn--a", "a" * 63 + ".b", ".".join(["a" * 49] * 5),
                 "n", "xn-.a"],
    "json-pointer": ["", "/foo/~0~1bar", "/a~1/~"],
}
# fmt: on


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKERS)
def test_a_format_takes_what_another_checker_takes(name: str) -> None:
    rng, texts, counts = random.Random(name), texts_of(name), [0, 0]
    for _ in range(700):
        text = changed(rng, rng.choice(SEEDS[name]))
        expected = CHECKERS[name](text)
        counts[expected] += 1
        assert (text in texts) == expected, text
    assert min(counts) > 30


def changed(rng: random.Random, text: str) -> str:
    """A text with a few characters replaced, removed, doubled or swapped, most often by others that it has."""
    letters = [*text, *"0123456789:-.aZ~/"]
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(text) + 1)
        new = rng.choice([rng.choice(letters), text[at : at + 1], ""])
        text = text[:at] + new + text[at + rng.randrange(2) :]
    return text


@pytest.mark.slow
def test_ipv6_has_as_many_groups_as_another_checker_counts_alone_and_in_mail_addresses_and_uris() -> None:
    rng, addresses, mail, uris = random.Random(7), texts_of("ipv6"), texts_of("email"), texts_of("uri")
    counts = [0, 0]
    for _ in range(1500):
        groups = rng.choices(["0", "ab", "12F", "1.2.3.4", "12345"], [6, 6, 6, 1, 0.2], k=rng.randrange(10))
        text = ":".join(groups)
        if rng.random() < 0.7:
            at = rng.randrange(len(groups) + 1)
            text = f"{':'.join(groups[:at])}::{':'.join(groups[at:])}"
        expected = is_ip(text, ipaddress.IPv6Address)
        counts[expected] += 1
        assert (text in addresses) == expected, text
        assert (f"a@[IPv6:{text}]" in mail) == expected, text
        assert (f"a://[{text}]/" in uris) == expected, text
    assert min(counts) > 300


@pytest.mark.slow
def test_every_day_of_four_centuries_is_a_date_and_no_other() -> None:
    texts, rng = texts_of("date"), random.Random(5)
    for year in {1, 4, 100, 400, 1900, 2000, 2023, 2024, 2100, 9999, *rng.sample(range(1, 10000), 4)}:
        for month in range(14):
            for day in (0, 1, 28, 29, 30, 31, 32):
                text = f"{year:04}-{month:02}-{day:02}"
                assert (text in texts) == is_date(text), text
    assert "0000-01-01" not in texts


def test_hostnames_have_at_most_253_characters() -> None:
    texts = texts_of("hostname")
    for size in (252, 253, 254, 255):
        text = ".".join(["a" * 50] * 5)[: size - 1].rstrip(".") + "b" * 50
        text = text[:size]
        assert (text in texts) == (size <= 253), size
    assert "a" * 63 in texts
    assert "a" * 64 not in texts


@pytest.mark.slow
def test_a_good_text_is_taken_after_a_bad_one() -> None:
    """llguidance gives up on a terminal, for all texts, when it cannot tell whether anything is left to match."""
    for name, seeds in SEEDS.items():
        texts = Texts(json_string(format_expression(name)))
        for bad in ("xn--4gbwdl.xn--wgbh1c", "2023-02-29T", "a" * 300, ""):
            for text in [bad, *filter(CHECKERS[name], seeds)]:
                assert (json.dumps(text) in texts) == CHECKERS[name](text), (name, text)


@pytest.mark.slow
def test_an_internationalised_hostname_has_a_punycode() -> None:
    texts, rng = texts_of("idn-hostname"), random.Random(3)
    letters = [chr(point) for point in range(0x80, 0xFE00) if chr(point).isalpha()]
    taken = 0
    for _ in range(3000):
        text = ".".join("".join(rng.choices(letters, k=rng.randint(1, 10))) for _ in range(rng.randint(1, 3)))
        if text in texts:
            taken += 1
            assert idna.encode(text, strict=True)
    assert taken > 20
    for text in ("bücher.example", "παράδειγμα", "日本語.jp", "пример", "한국"):
        assert text in texts
    for text in ("\u0301a", "a\u200db", "אב", "-ü", "ü-", "ＡＢ"):
        assert text not in texts


# --- stated from the standards ----------------------------------------------------------------------------------------

STATED = {
    "duration": (["P1Y2M3DT4H5M6S", "PT36H", "P2W", "P1M", "PT1M"],
                 ["P", "PT", "P1Y2W", "P1Y2D", "PT1H2S", "PT0.5S", "-P1D"]),
    "email": (
        ["a@b", "te.s~t@example.com", '"joe @\\"x"@example.com', "a@[127.0.0.1]", "a@[IPv6:::1]", "x" * 64 + "@a",
         '"' + "x" * 62 + '"@a', '"' + r"\"" * 31 + '"@a', '""@a'],
        ["@a", "a@", ".a@b", "a..b@c", "a b@c", "a@b_c", "a@[1.2.3.300]", "x" * 65 + "@a", "a@b\n", "é@a",
         '"' + "x" * 63 + '"@a', '"' + r"\"" * 31 + 'x"@a', '"x@a', '"x"y@a'],
    ),
    "idn-email": (
        ["실례@실례.테스트", "a@b", "δοκιμή@example.com", "é" * 64 + "@a", '"' + "é" * 62 + '"@a'],
        ["2962", "a＠b", "a@\u0301", "é" * 65 + "@a", '"' + "é" * 63 + '"@a'],
    ),
    "uri": (
        ["http://a", "urn:x:y", "a+b.c-1://u:p@[::1]:80/p;q?r/s#t", "http://[v1.fe]", "x:", "x:/", "http://%41:?#"],
        ["//a", "a", "http://a b", "http://é", "1http://a", "http://[::1", "http:/[::1]", "http://a/%zz", "x:#a#b", "http://a\\b"],
    ),
    "uri-reference": (["", "//a/b", "../c?d#e", "./a:b", "a/b:c", "#", "?"], ["1:b", "/%zz", "\\a", "/[::1]"]),
    "iri": (["http://ƒøø.ßår/?∂=π#x", "http://a/\ue000?"[:9] + "?\ue000"], ["/a", "http://a/\ue000", "http://a b"]),
    "iri-reference": (["âππ", "#ƒrägmênt"], ["#ƒräg\\mênt"]),
    "uri-template": (
        ["", "a{b}c", "{+a,b*}", "{?a:999,b.c}", "a%41", "{%41}", "a'b"],
        ["{", "}", "{}", "{a,}", "{a:0}", "{a:10000}", "{,a}", "{a b}", "a b", "{a..b}", "{=a}"],
    ),
    "relative-json-pointer": (["0", "1/a", "10#", "0/~1"], ["", "/a", "01", "1#/a", "-1", "0/~"]),
    "regex": (
        ["^a+$", "[a-z0-9_]*", r"(?:\d{1,3}\.){3}", "a|b", "(a(b)c)?", "[^\\]]", r"\u0041\x41", "a{2,}?", "(?=a)b"],
        ["(", "[", "a**", "[z-a]", "(?<n", "\\", "a{3,2}", ")", "{2}", "(?=a)*", "+"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STATED)
def test_a_format_is_what_its_standard_says(name: str) -> None:
    texts, (good, bad) = texts_of(name), STATED[name]
    assert [text for text in good if text not in texts] == []
    assert [text for text in bad if text in texts] == []


def test_patterns_of_the_format_regex_are_valid_in_python_too() -> None:
    rng, texts, taken = random.Random(1), texts_of("regex"), 0
    for _ in range(4000):
        text = "".join(rng.choices([*"ab019()[]{}?*+|.^$-,", "\\d", "\\b", "(?:", "(?="], k=rng.randint(1, 7)))
        # To Python a bracket that comes first in a class belongs to it.
        if text in texts and "[]" not in text and "[^]" not in text:
            taken += 1
            re.compile(text)
    assert taken > 300


def test_a_uri_is_split_as_the_standard_library_splits_it() -> None:
    rng, taken = random.Random(2), 0
    for _ in range(3000):
        text = "".join(
            rng.choices(["http", ":", "/", "//", "a", "[::1]", "@", "?", "#", "80", "%41", "."], k=rng.randint(2, 8))
        )
        if text in texts_of("uri"):
            taken += 1
            parts = urllib.parse.urlsplit(text)
            assert parts.scheme
            assert text.count("#") <= 1
    assert taken > 40


def test_every_format_is_judged_here() -> None:
    assert set(CHECKERS) | set(STATED) | {"idn-hostname"} == set(FORMATS)


def test_an_unknown_format_is_refused_by_name() -> None:
    with pytest.raises(GrammarError, match=r"format must be one of .*, got 'dat'; did you mean 'date'"):
        format_expression("dat")
