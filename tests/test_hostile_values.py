"""Every field of every route with values that no sane client sends: a clear refusal or a clean answer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hostile import NORMAL, ROUTES, Client, attacks, check, fields_of, text_of
from servers import Server, shared

SAMPLE = 150
"""How many of some 5,000 attacks on a route the short test sends."""


@pytest.fixture
def server() -> Server:
    return shared("tiny")


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    made = Client(server)
    yield made
    made.close()


def assault(client: Client, server: Server, route: str, chosen: list[tuple[str, dict[str, Any]]]) -> None:
    """Sends bodies one after the other; between them and at the end the server must write what it wrote before."""
    before = text_of(client.send(route, NORMAL[route]).json)
    for number, (what, body) in enumerate(chosen):
        check(client.send(route, body), what)
        if number % 50 == 0:
            assert text_of(client.send(route, NORMAL[route]).json) == before, what
    assert text_of(client.send(route, NORMAL[route]).json) == before
    assert server.process.poll() is None
    assert "Traceback" not in server.log


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_some_hostile_values_are_refused_or_answered(client: Client, server: Server, route: str) -> None:
    chosen = random.Random(route).sample(list(attacks(route)), SAMPLE)
    assault(client, server, route, chosen)


SWEPT = [pytest.param(route, marks=[pytest.mark.exhaustive] * (route != "/generate")) for route in ROUTES]


@pytest.mark.slow
@pytest.mark.parametrize("route", SWEPT)
def test_all_hostile_values_are_refused_or_answered(client: Client, server: Server, route: str) -> None:
    chosen = list(attacks(route))
    assert len(chosen) > 3000
    assault(client, server, route, chosen)


@pytest.mark.parametrize("route", ROUTES)
def test_no_field_names_a_place_of_the_server_to_write_to(route: str) -> None:
    writes = ("_dir", "_file", "output_path", "save_", "dump", "profile", "upload")
    assert [name for name in fields_of(route) if any(word in name for word in writes)] == []
