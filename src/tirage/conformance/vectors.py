"""The golden vectors: one case per line of `vectors/*.jsonl`, in the form that `vector.schema.json` describes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tirage.errors import ParamsError, nearest

FOLDER = Path(__file__).parent / "vectors"
SCHEMA = Path(__file__).parent / "vector.schema.json"

_TEXTS = ("rule", "source", "why")
OUTCOME = ("status", "token", "support", "weights", "W", "law", "sampled_logprob", "logprob", "rank", "top", "given")
"""What a vector may say about the draw; a line has all of them but `law`, or those that were worked out by hand."""


@dataclass(frozen=True, slots=True)
class Vector:
    """One line of a vector file; `topic` is the name of the file."""

    topic: str
    data: Mapping[str, Any]

    @property
    def id(self) -> str:
        """Its name among all vectors: the topic and the id of its line."""
        return f"{self.topic}/{self.data['id']}"

    @property
    def rule(self) -> str:
        """The rule of SPEC.md that it is about."""
        return self.data["rule"]

    @property
    def preset(self) -> str:
        """The preset whose order and options it is drawn in, without a version."""
        return self.data["params"].get("semantics", "canonical").partition("@")[0]

    @property
    def outcome(self) -> dict[str, Any]:
        """What is known of the draw, under the names of `OUTCOME`."""
        return {name: self.data[name] for name in OUTCOME if name in self.data}

    @property
    def request(self) -> dict[str, Any]:
        """What a program is asked: the case with nothing left out, and the logits as the bits of binary32 numbers."""
        data = self.data
        output = list(data.get("output", ()))
        words = data.get("bits") or [_bits(float.fromhex(text)) for text in data["logits"]]
        return {
            "id": self.id,
            "rule": self.rule,
            "bits": words,
            "params": {"semantics": "canonical", **data["params"]},
            "prompt": list(data.get("prompt", ())),
            "output": output,
            "seed": data.get("seed", 0),
            "step": data.get("step", len(output)),
            "sample_index": data.get("sample_index", 0),
            "mask": data.get("mask"),
            **({"state": data["state"]} if "state" in data else {}),
        }


def _bits(value: float) -> str:
    return struct.pack(">f", value).hex()


def read_vectors(
    folder: Path | None = None,
    *,
    topics: Iterable[str] = (),
    rules: Iterable[str] = (),
    presets: Iterable[str] = (),
) -> list[Vector]:
    """The vectors of a folder, by default those of this release, in the order of files and lines.

    `topics`, `rules` and `presets` each choose; none of a kind is all of it. Raises ParamsError for a name that no
    vector has, with the nearest one, for a folder without vectors, and for a file that holds anything else.
    """
    folder = FOLDER if folder is None else folder
    found = [vector for path in sorted(folder.glob("*.jsonl")) for vector in _read(path)]
    if not found:
        raise ParamsError(f"vectors must be a folder of .jsonl files with vectors, got {folder}; leave it out for ours")
    for kind, name, wanted in (("topic", "topic", topics), ("rule", "rule", rules), ("preset", "preset", presets)):
        found = _chosen(found, kind, name, list(wanted))
    return found


def _chosen(vectors: list[Vector], kind: str, name: str, wanted: list[str]) -> list[Vector]:
    known = sorted({getattr(vector, name) for vector in vectors})
    for one in wanted:
        if one not in known:
            raise ParamsError(f"{kind} must be one of {', '.join(known)}, got {one!r}{nearest(one, known)}")
    return [vector for vector in vectors if not wanted or getattr(vector, name) in wanted]


def _read(path: Path) -> list[Vector]:
    return [_vector(path, number, line) for number, line in enumerate(_lines(path), 1) if line.strip()]


def _lines(path: Path) -> list[str]:
    # A pipe or a device may never end.
    if not path.is_file():
        raise ParamsError(f"vectors must be regular files, got {path}; take it out of the folder")
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ParamsError(f"vectors must be readable files, got {path}: {error}") from None


def _vector(path: Path, number: int, line: str) -> Vector:
    try:
        data = json.loads(line)
        vector = Vector(path.stem, data)
        _ = vector.request
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ParamsError(
            f"a line of vectors must be an object as in vector.schema.json, got {line[:60]!r} in {path.name}:{number} "
            f"({type(error).__name__}: {error})"
        ) from None
    return vector


def schema() -> dict[str, Any]:
    """The JSON Schema of a line of a vector file; its `$defs` have those of a request and of an answer."""
    return json.loads(SCHEMA.read_text(encoding="utf-8"))
