"""The places of sequences in libllama's cache, and their states as bytes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tirage.models.gguf.places import Places, are_neighbours
from tirage.models.gguf.sequence_state import SequenceStates


def lined_up(places: Places, sequences: list[int]) -> int:
    """The number of exchanges that it took."""
    pairs = places.exchanges(sequences)
    count = 0
    for first, second in pairs:
        places.exchange(first, second)
        count += 1
    return count


@pytest.mark.parametrize(
    ("sequences", "exchanges"),
    [([0], 0), ([3], 0), ([2, 0, 1], 0), ([0, 2], 1), ([0, 1, 2, 4, 5, 6, 7], 1), ([7, 0], 1), ([0, 2, 4, 6], 2),
     ([1, 2, 7], 1), ([5, 6, 7], 0), ([0, 6, 7], 1)],
)  # fmt: skip
def test_gaps_are_closed_by_the_fewest_exchanges(sequences: list[int], exchanges: int) -> None:
    places = Places(8)
    assert lined_up(places, sequences) == exchanges
    assert are_neighbours(sorted(places.of(sequences)))


def test_every_sequence_keeps_a_place_of_its_own() -> None:
    rng = random.Random(3)
    places = Places(16)
    for _ in range(500):
        sequences = rng.sample(range(16), rng.randint(1, 16))
        lined_up(places, sequences)
        assert are_neighbours(sorted(places.of(sequences)))
        assert sorted(places.of(range(16))) == list(range(16))
        assert lined_up(places, sequences) == 0


def test_new_sequences_have_the_places_at_the_end() -> None:
    places = Places(3)
    places.exchange(0, 2)
    assert places.resized(5).of(range(5)) == [2, 1, 0, 3, 4]
    assert Places(0).resized(2).of(range(2)) == [0, 1]


@pytest.mark.parametrize(("places", "expected"), [([4], True), ([1, 2, 3], True), ([1, 3], False), ([2, 1], False)])
def test_neighbours_go_up_by_one(places: list[int], expected: bool) -> None:
    assert are_neighbours(places) is expected


class Written:
    """What libllama writes of sequences in so many streams: a header, the streams, the cells of each, the content."""

    def __init__(self, streams: int, *, header: bytes = b"head", told: int | None = None) -> None:
        self.contents, self._streams, self._header = [b""] * max(streams, 4), streams, header
        self._told = streams if told is None else told

    def llama_state_seq_get_size(self, _context: None, sequence: int) -> int:
        return len(self._bytes(sequence))

    def llama_state_seq_get_data(self, _context: None, target: object, size: int, sequence: int) -> int:
        np.ctypeslib.as_array(target, (size,))[:] = np.frombuffer(self._bytes(sequence), np.uint8)  # type: ignore[call-overload]
        return size

    def llama_state_seq_set_data(self, _context: None, source: object, size: int, sequence: int) -> int:
        whole = np.ctypeslib.as_array(source, (size,)).tobytes()  # type: ignore[call-overload]
        start = len(self._header)
        assert whole[:start] == self._header
        assert int.from_bytes(whole[start : start + 4], "little") == self._streams
        rest, at = whole[start + 4 :], 0
        for _ in range(self._streams):
            count = int.from_bytes(rest[at : at + 4], "little")
            if count:
                self.contents[sequence] = rest[at + 4 : at + 4 + count]
            at += 4 + count
        assert at == len(rest)
        return size

    def _bytes(self, sequence: int) -> bytes:
        stream = min(sequence, self._streams - 1)
        parts = [self.contents[sequence] if at == stream else b"" for at in range(self._streams)]
        cells = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
        return self._header + self._told.to_bytes(4, "little") + cells


@pytest.mark.parametrize("source_streams", [1, 4, 7])
@pytest.mark.parametrize("target_streams", [1, 4, 7])
@pytest.mark.parametrize("header", [b"", b"head", b"magic and sequence"])
def test_a_state_fits_contexts_with_other_streams(source_streams: int, target_streams: int, header: bytes) -> None:
    for source, target in ((0, 0), (0, 3), (3, 1)):
        one, other = Written(source_streams, header=header), Written(target_streams, header=header)
        reads, writes = (
            SequenceStates(each, None, streams=streams)
            for each, streams in ((one, source_streams), (other, target_streams))
        )
        assert reads.are_known
        assert writes.are_known
        one.contents[source] = b"\0\0keys and values\0\0\0\0\0"
        state = reads.read(source)
        assert state is not None
        assert writes.write(target, state)
        assert other.contents[target] == one.contents[source]


def test_what_another_release_writes_is_not_read() -> None:
    states = SequenceStates(Written(4, told=5), None, streams=4)
    assert not states.are_known
    assert states.read(0) is None
