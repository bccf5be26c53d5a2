"""Records of the parameters and tokens of a request, as plain JSON, and running a request again from its record."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tirage.errors import ParamsError
from tirage.llm import LLM, Completion, Prompt
from tirage.params import BeamSearchParams, SamplingParams, public_dict
from tirage.remote.events import EventParser
from tirage.server import strict_json
from tirage.server.engine_input import ModelInfo
from tirage.server.request_group import RunningRequest

VERSION = 1
"""The version of the records; any other is refused."""
_KEYS = frozenset({
    "replay", "tirage", "model", "prompt_token_ids", "standalone", "adapter", "unrepeatable", "params", "beams",
    "samples",
})  # fmt: skip
# Members that older records lack, and their values for these.
_LATER: Mapping[str, Any] = {"begun": ""}
_MOST_SAMPLES = 1 << 16
_NOTHING: Mapping[str, Any] = {"token_ids": [], "finish_reason": None}
_ENDS = 64 << 10
# JSON begins with none of the fields of an event, nor with a colon, which begins a comment.
_EVENT_STREAM = re.compile(rb"\s*(?:data|event|id|retry)?:")
_FILES = ("*.json", "*.safetensors", "*.npz", "*.model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first token of a sample that differs: the recorded one and the new one, None where a sample has ended."""

    sample: int
    position: int
    was: int | None
    now: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A request that ran again: its completion, and the first difference from the recorded tokens, if any.

    `changed` lists what the last bits of logits depend on and has changed: name, recorded value, value now.
    """

    completion: Completion
    difference: Difference | None
    same_model: bool
    changed: tuple[tuple[str, Any, Any], ...] = ()


def model_info_of(llm: LLM, name: str) -> ModelInfo:
    """A model's identity. The digest covers names, sizes and both ends of the folder's files, not every weight."""
    if llm.folder is None:
        shape = f"{type(llm.model).__name__}:{llm.model.vocab_size}:{llm.model.max_length}"
        return ModelInfo(name, shape, numerics_of(llm))
    found = hashlib.sha256()
    one = [llm.folder] if llm.folder.is_file() else []
    for path in one or sorted(path for shape in _FILES for path in llm.folder.glob(shape)):
        size = path.stat().st_size
        with path.open("rb") as file:
            found.update(f"{path.name}:{size}:".encode() + file.read(_ENDS))
            file.seek(max(0, size - _ENDS))
            found.update(file.read(_ENDS))
    return ModelInfo(name, f"sha256:{found.hexdigest()[:32]}", numerics_of(llm))


def numerics_of(llm: LLM) -> dict[str, Any]:
    """What the last bits of logits depend on besides the weights: the model's class, and what the model reports."""
    own = getattr(llm.model, "numerics", dict)
    return {"class": type(llm.model).__name__, **llm.engine.call(own)}


def effective(running: RunningRequest, completion: Completion | None = None) -> dict[str, Any]:
    """The record of a finished request, as strict JSON: enough for `replay` to draw its tokens again.

    `params` are those in force, with defaults, preset, seed, EOS ids and tokenised words. Each of `samples` has the
    seed with which sample `index` was drawn, and its tokens. `begun` is the text of a message that was continued. For a
    request with images, audio or embeddings `unrepeatable` says what a replay would lack. The key of a watermark is
    never in it.
    """
    done = running.request.completion() if completion is None else completion
    inputs, beams = running.request.inputs, running.engine_input.beams
    lacking = "media" if inputs.media else "embeds" if inputs.embeds is not None else None
    return {
        "replay": VERSION,
        "tirage": own_version(),
        "model": {
            "name": running.model.name,
            "fingerprint": running.model.fingerprint,
            "numerics": dict(running.model.numerics),
        },
        "prompt_token_ids": list(done.prompt_token_ids),
        "standalone": running.engine_input.messages is not None and not running.engine_input.continue_final_message,
        "begun": running.engine_input.begun,
        "adapter": inputs.adapter,
        "unrepeatable": lacking,
        "params": public_dict(running.request.params if beams is None else running.engine_input.params),
        "beams": None if beams is None else beams.to_dict(),
        "samples": [
            {
                "index": sample.index,
                "seed": done.seed,
                "token_ids": list(sample.token_ids),
                "finish_reason": sample.finish_reason,
            }
            for sample in done.samples
        ],
    }


def own_version() -> str:
    """The version of tirage."""
    try:
        return version("tirage")
    except PackageNotFoundError:
        return "unknown"


def read_records(text: bytes) -> list[dict[str, Any]]:
    """The records in a text: in JSON one, a list of them, or answers that contain them as `effective_params`.

    The text may also be that of an event stream, as it was received. Raises ParamsError for a text without any, and for
    a record of another version or shape.
    """
    found = [record for value in values_of(text) for record in records_in(value)]
    if not found:
        raise ParamsError("replay must be given an answer with effective_params, got a text without")
    for record in found:
        check_record(record)
    return found


def values_of(text: bytes) -> Iterator[Any]:
    """The JSON value of a text, or of each event of a `text/event-stream`. Raises ParamsError for any other text."""
    if not _EVENT_STREAM.match(text):
        yield strict_json.parse(text)
        return
    # A saved stream may lack the empty line that ends its last event.
    for data in EventParser(most=len(text) + 4).feed(text + b"\n\n"):
        if data != b"[DONE]":
            yield strict_json.parse(data)


def records_in(value: Any) -> Iterator[dict[str, Any]]:
    """The records anywhere in a value, in order; recursion is safe, as the nesting of parsed JSON is limited."""
    if isinstance(value, dict) and "replay" in value:
        yield value
    elif isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from records_in(each)


def check_record(record: Mapping[str, Any]) -> None:
    """Raises ParamsError for a record of another version, or of a shape that `effective` does not write."""
    if record["replay"] != VERSION:
        raise ParamsError(f"replay must have the version {VERSION}, got {record['replay']!r:.60}")
    shapes: tuple[tuple[str, Callable[[Any], bool]], ...] = (
        ("prompt_token_ids", is_ids),
        ("params", lambda value: isinstance(value, dict)),
        ("beams", lambda value: value is None or isinstance(value, dict)),
        ("adapter", lambda value: value is None or isinstance(value, str)),
        ("model", is_model_info),
        ("standalone", lambda value: isinstance(value, bool)),
        ("begun", lambda value: isinstance(value, str)),
        ("unrepeatable", lambda value: value is None or isinstance(value, str)),
        ("samples", lambda value: isinstance(value, list) and bool(value) and all(map(is_sample, value))),
    )
    full = {**_LATER, **record}
    if set(full) != _KEYS | set(_LATER) or not all(fits(full[name]) for name, fits in shapes):
        raise ParamsError(
            f"replay must be effective_params as an answer gives them: {', '.join(sorted(_KEYS | set(_LATER)))}"
        )


def is_ids(value: Any) -> bool:
    """Whether a value is a list of integers."""
    return isinstance(value, list) and all(type(each) is int for each in value)


def is_model_info(value: Any) -> bool:
    """Whether a value describes a model as `effective` does."""
    return isinstance(value, dict) and all(isinstance(value.get(name), str) for name in ("name", "fingerprint"))


def is_sample(value: Any) -> bool:
    """Whether a value is a sample as `effective` writes it."""
    return isinstance(value, dict) and is_ids(value.get("token_ids")) and "finish_reason" in value


def replay(llm: LLM, record: Mapping[str, Any], *, watermark_key: Any = None) -> Replayed:
    """Runs the request of a record again on this model, and compares its tokens with the recorded ones.

    The same model on the same backend gives the same tokens, for beams and constraints too; processors must be
    registered under the same names. An aborted sample is compared up to its recorded end. `watermark_key` is that of a
    watermarked text, which no record holds. Raises ParamsError for a record that cannot be replayed.
    """
    if record["unrepeatable"] is not None:
        raise ParamsError(f"replay must be of text and token ids alone, got a request with {record['unrepeatable']}")
    prompt = Prompt(token_ids=record["prompt_token_ids"], adapter=record["adapter"])
    params = SamplingParams.from_dict(with_key(record["params"], watermark_key))
    beams = None if record["beams"] is None else BeamSearchParams.from_dict(record["beams"])
    check_samples(record["samples"], params, beams)
    chat: dict[str, Any] = {"standalone": record["standalone"], "begun": record.get("begun", _LATER["begun"])}
    if beams is not None:
        request = llm.beam_request(prompt, beams, sampling=params, **chat)
    else:
        request = llm.request(prompt, params, **chat)
    completion = llm.engine.submit(request).wait()
    model_info = model_info_of(llm, record["model"]["name"])
    return Replayed(
        completion=completion,
        difference=first_difference(record["samples"], completion),
        same_model=model_info.fingerprint == record["model"]["fingerprint"],
        changed=changes(record["model"].get("numerics"), model_info.numerics),
    )


def with_key(params: Mapping[str, Any], key: Any) -> Mapping[str, Any]:
    """The parameters of a record with the key of their watermark. Raises ParamsError for one missing or too many."""
    mark = params.get("watermark")
    if not isinstance(mark, Mapping):
        if key is not None:
            raise ParamsError("watermark key must be left out, the recorded text has no watermark")
        return params
    if key is None:
        raise ParamsError(
            "watermark key must be given to replay a watermarked text, as records do not hold it, got none; "
            "pass --watermark-key, or watermark_key="
        )
    keys = [key] if mark.get("scheme") == "synthid" and isinstance(key, int) else key
    return {**params, "watermark": {**mark, "key": keys}}


def changes(was: Any, now: Mapping[str, Any]) -> tuple[tuple[str, Any, Any], ...]:
    """What has changed: name, recorded value, value now. Empty for a record without these values."""
    before = was if isinstance(was, Mapping) else {}
    return tuple((name, before[name], value) for name, value in now.items() if before.get(name, value) != value)


def check_samples(samples: Sequence[Any], params: SamplingParams, beams: BeamSearchParams | None) -> None:
    """Raises ParamsError for a wrong number of samples, and for a request with more samples than any server draws."""
    count = params.n if beams is None else beams.returned
    drawn = max(count, params.best_of or 0)
    if drawn > _MOST_SAMPLES:
        raise ParamsError(f"replay must draw at most {_MOST_SAMPLES} samples, got {drawn}")
    # A search of short texts may end with fewer hypotheses than beams.
    if len(samples) != count and (beams is None or len(samples) > count):
        raise ParamsError(f"replay must be given all {count} samples of a request, got {len(samples)}")


def first_difference(samples: Sequence[Mapping[str, Any]], completion: Completion) -> Difference | None:
    """The first difference, by position and then by sample; None if all tokens are equal."""
    found = [
        difference
        for index, (sample, now) in enumerate(zip_longest(samples, completion.samples))
        if (difference := differs(index, sample or _NOTHING, now.token_ids if now else ())) is not None
    ]
    return min(found, key=lambda each: (each.position, each.sample), default=None)


def differs(index: int, sample: Mapping[str, Any], now: Sequence[int]) -> Difference | None:
    """The first difference within one sample; None if its tokens are equal."""
    was = sample["token_ids"]
    if sample["finish_reason"] == "abort":
        now = now[: len(was)]
    for position in range(max(len(was), len(now))):
        old = was[position] if position < len(was) else None
        new = now[position] if position < len(now) else None
        if old != new:
            return Difference(sample=index, position=position, was=old, now=new)
    return None


def dtype_of(record: Mapping[str, Any]) -> str | None:
    """The dtype in which the model of a record ran, "int8" included; None for a record without it."""
    numerics = record["model"].get("numerics")
    found = numerics.get("dtype") if isinstance(numerics, Mapping) else None
    return found if isinstance(found, str) else None


def folder_named(name: str) -> str | Path:
    """The bundled model of this name; raises ParamsError for any other, for which --model must be given."""
    from tirage.models import bundled

    if name not in bundled():
        raise ParamsError(f"--model must be given, the answer came from {str(name)[:60]!r}, which is not bundled")
    return name
