"""Compares the request fields of the engines whose clients we serve with tests/peers/fields/*.csv.

Each engine's published package is downloaded with pip (never installed, never imported) and its request classes are
read as source. What is new, gone or has another default is printed, and the exit status is 1; with --write the files
are rewritten. A new field must first be enforced, or listed in `tirage.dialects.unsupported`.

    python scripts/peer_fields.py                          every engine, at the version of tests/peers/versions.csv
    python scripts/peer_fields.py sglang==0.5.24           another version of one
    python scripts/peer_fields.py vllm=dist/vllm.whl       a wheel, a source archive or a folder that is here already
    python scripts/peer_fields.py --write openai
    python scripts/peer_fields.py --standing               no download: what becomes of the fields, read anew

FastDeploy publishes no package on PyPI; give a checkout of its repository: fastdeploy=FOLDER. vLLM's wheel has 340 MB.
"""

from __future__ import annotations

import argparse
import ast
import csv
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from peer_contract import FOLDER, Row, UnknownFieldError, read_file, standing, write_file  # noqa: E402

VERSIONS = FOLDER.parent / "versions.csv"
Fields = Mapping[str, str]
"""Names of fields and their defaults, as they are written in the source; empty for none."""


def of_classes(*names: str) -> Callable[[str], Fields]:
    """Reads the annotated fields of classes, and of their bases in the same file."""
    return partial(_of_classes, names)


def _of_classes(names: Sequence[str], source: str) -> Fields:
    # An alias as Python 3.12 writes it is read by older ones as a plain assignment.
    tree = ast.parse(re.sub(r"^type (?=\w+ = )", "", source, flags=re.M))
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    found: dict[str, str] = {}
    for name in names:
        bases = [base.id for base in classes[name].bases if isinstance(base, ast.Name) and base.id in classes]
        found |= _of_classes(bases, source) if bases else {}
        found |= dict(annotated(classes[name]))
    return found


def annotated(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """The public annotated fields of one class."""
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.target.id[0] != "_":
            yield line.target.id, default_of(line.value)


def default_of(value: ast.expr | None) -> str:
    """A default as it is written, also inside `Field(...)` and `field(...)`; empty where there is none."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) in {"Field", "field", "msgspec.field"}:
        named = {each.arg: each.value for each in value.keywords}
        factory = named.get("default_factory")
        if factory is not None:
            return "[]" if ast.unparse(factory) == "list" else f"{ast.unparse(factory)}()"
        value = value.args[0] if value.args else named.get("default")
    if value is None or ast.unparse(value) == "...":
        return ""
    return ast.unparse(value)


def of_function(name: str) -> Callable[[str], Fields]:
    """Reads the parameters of a function and their defaults."""
    return partial(_of_function, name)


def _of_function(name: str, source: str) -> Fields:
    [found] = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == name]
    given = found.args
    last = given.args[len(given.args) - len(given.defaults) :]
    defaults = {arg.arg: default for arg, default in zip(last, given.defaults, strict=True)}
    defaults |= {arg.arg: default for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default}
    return {arg.arg: default_of(defaults.get(arg.arg)) for arg in (*given.args, *given.kwonlyargs)}


def popped(source: str) -> Fields:
    """The attributes that transformers' GenerationConfig takes out of its keyword arguments."""
    found = re.findall(r"self\.(\w+) = kwargs\.pop\(\"\w+\", ([^)]*)\)", source)
    return dict(found)


def declared(source: str) -> Fields:
    """The fields that llama.cpp's server declares in its schema, and their other names."""
    active = re.sub(r"^#if 0$.*?^#endif$", "", source, flags=re.M | re.S)
    active = re.sub(r"^\s*//.*$", "", active, flags=re.M)
    return dict.fromkeys(re.findall(r"(?:new field_\w+\(|add_alias\()\"([\w.]+)\"", active), "")


@dataclass(frozen=True)
class Kind:
    """A class or function of a peer: where its source is, how it is read, and the place here that takes its fields."""

    name: str
    path: str
    place: str
    read: Callable[[str], Fields]


_SGLANG = "sglang/srt/entrypoints/openai/protocol.py"
_VLLM = "vllm/entrypoints/openai"
_OPENAI = "openai/types"
_FASTDEPLOY = "fastdeploy/entrypoints/openai/protocol.py"
_RESPOND = ("ResponseCreateParamsBase", "ResponseCreateParamsStreaming")
_CREATE = ("CompletionCreateParamsBase", "CompletionCreateParamsStreaming")
_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_RESPONSES, _MESSAGES = "/v1/responses", "/v1/messages"
_ANTHROPIC = "anthropic/types"
_MESSAGE = ("MessageCreateParamsBase", "MessageCreateParamsStreaming")

PEERS: Mapping[str, Sequence[Kind]] = {
    "sglang": [
        Kind("GenerateReqInput", "sglang/srt/managers/io_struct.py", "/generate", of_classes("GenerateReqInput")),
        Kind(
            "SamplingParams",
            "sglang/srt/sampling/sampling_params.py",
            "sampling_params",
            of_classes("SamplingParams"),
        ),
        Kind("ChatCompletionRequest", _SGLANG, _CHAT, of_classes("ChatCompletionRequest")),
        Kind("CompletionRequest", _SGLANG, _COMPLETIONS, of_classes("CompletionRequest")),
        Kind("ResponsesRequest", _SGLANG, _RESPONSES, of_classes("ResponsesRequest")),
        Kind(
            "AnthropicMessagesRequest",
            "sglang/srt/entrypoints/anthropic/protocol.py",
            _MESSAGES,
            of_classes("AnthropicMessagesRequest"),
        ),
    ],
    "vllm": [
        Kind("SamplingParams", "vllm/sampling_params.py", "from_vllm", of_classes("SamplingParams")),
        Kind(
            "ChatCompletionRequest",
            f"{_VLLM}/chat_completion/protocol.py",
            _CHAT,
            of_classes("ChatCompletionRequest"),
        ),
        Kind("CompletionRequest", f"{_VLLM}/completion/protocol.py", _COMPLETIONS, of_classes("CompletionRequest")),
        Kind("ResponsesRequest", f"{_VLLM}/responses/protocol.py", _RESPONSES, of_classes("ResponsesRequest")),
        Kind(
            "AnthropicMessagesRequest",
            "vllm/entrypoints/anthropic/protocol.py",
            _MESSAGES,
            of_classes("AnthropicMessagesRequest"),
        ),
    ],
    "anthropic": [
        Kind("messages.create", f"{_ANTHROPIC}/message_create_params.py", _MESSAGES, of_classes(*_MESSAGE)),
        Kind("beta.messages.create", f"{_ANTHROPIC}/beta/message_create_params.py", _MESSAGES, of_classes(*_MESSAGE)),
        Kind(
            "messages.count_tokens",
            f"{_ANTHROPIC}/message_count_tokens_params.py",
            _MESSAGES,
            of_classes("MessageCountTokensParams"),
        ),
    ],
    "openai": [
        Kind("chat.completions.create", f"{_OPENAI}/chat/completion_create_params.py", _CHAT, of_classes(*_CREATE)),
        Kind("completions.create", f"{_OPENAI}/completion_create_params.py", _COMPLETIONS, of_classes(*_CREATE)),
        Kind("responses.create", f"{_OPENAI}/responses/response_create_params.py", _RESPONSES, of_classes(*_RESPOND)),
    ],
    "transformers": [
        Kind("GenerationConfig", "transformers/generation/configuration_utils.py", "from_hf", popped),
    ],
    "llamacpp": [
        Kind("/completion", "tools/server/server-schema.cpp", "from_llamacpp", declared),
    ],
    "mlx": [
        Kind(name, "mlx_lm/sample_utils.py", "from_mlx", of_function(name))
        for name in ("make_sampler", "make_logits_processors")
    ],
    "easydel": [
        Kind("SamplingParams", "easydel/inference/sampling_params.py", "from_easydel", of_classes("SamplingParams")),
    ],
    "gemma": [
        *(
            Kind(name, "gemma/gm/text/_sampling.py", "from_gemma", of_classes(name))
            for name in ("RandomSampling", "TopkSampling", "TopPSampling")
        ),
        Kind("Sampler", "gemma/gm/text/_sampler.py", "from_gemma", of_classes("Sampler")),
    ],
    "fastdeploy": [
        Kind("ChatCompletionRequest", _FASTDEPLOY, _CHAT, of_classes("ChatCompletionRequest")),
        Kind("CompletionRequest", _FASTDEPLOY, _COMPLETIONS, of_classes("CompletionRequest")),
    ],
}


def downloaded(requirement: str, folder: Path) -> Path:
    """The archive of a requirement: its wheel, or its source where there is no wheel for this machine."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), requirement]
    subprocess.run(pip, check=True)
    [archive] = folder.iterdir()
    return archive


def source_of(place: Path, path: str) -> str:
    """The text of the one file of a wheel, a source archive or a folder whose name ends with `path`."""
    if place.is_dir():
        [found] = [each for each in place.rglob(path.rpartition("/")[2]) if each.as_posix().endswith(f"/{path}")]
        return found.read_text(encoding="utf-8")
    if zipfile.is_zipfile(place):
        with zipfile.ZipFile(place) as wheel:
            return wheel.read(path).decode()
    with tarfile.open(place) as archive:
        for member in archive:
            if member.name.endswith(f"/{path}") and (found := archive.extractfile(member)) is not None:
                return found.read().decode()
    raise SystemExit(f"{place} has no file {path}; the peer has moved its request classes")


def rows_of(peer: str, place: Path) -> tuple[list[Row], list[str]]:
    """The rows of a peer, and the fields that nothing here knows."""
    rows, unknown = [], []
    for kind in PEERS[peer]:
        for name, default in kind.read(source_of(place, kind.path)).items():
            try:
                found = standing(kind.place, name)
            except UnknownFieldError:
                unknown.append(f"{peer} {kind.name}.{name} = {default or 'no default'}: {kind.place} does not know it")
                continue
            row = Row(peer=peer, kind=kind.name, field=name, default=default, place=kind.place, standing=found)
            rows.append(row)
    return rows, unknown


def changes(before: Sequence[Row], after: Sequence[Row]) -> Iterator[str]:
    """What differs between two versions of a file."""
    old = {(row.kind, row.field): row for row in before}
    new = {(row.kind, row.field): row for row in after}
    for kind, name in sorted(old.keys() | new.keys()):
        was, now = old.get((kind, name)), new.get((kind, name))
        if was == now:
            continue
        peer = (now or was or after[0]).peer
        if was is None or now is None:
            yield f"{peer} {kind}.{name}: {'new' if was is None else 'gone'}"
        elif was.default != now.default:
            yield f"{peer} {kind}.{name}: default {was.default or 'none'}, now {now.default or 'none'}"
        else:
            yield f"{peer} {kind}.{name}: {was.standing.status}, now {now.standing.status} ({now.standing.reason})"


def compare(peer: str, source: Path, *, write: bool) -> list[str]:
    """What differs between a peer's source and its file, which is rewritten on demand where all fields are known."""
    path = FOLDER / f"{peer}.csv"
    rows, unknown = rows_of(peer, source)
    found = unknown + list(changes(read_file(path) if path.exists() else [], rows))
    if write and not unknown:
        write_file(path, rows)
    return found


def renew() -> None:
    """Rewrites what becomes of the fields of every file, which a change here may have changed."""
    for path in sorted(FOLDER.glob("*.csv")):
        write_file(path, [replace(row, standing=standing(row.place, row.field)) for row in read_file(path)])


def versions() -> dict[str, str]:
    """The requirement of each peer that the files were written from."""
    with VERSIONS.open(encoding="utf-8", newline="") as lines:
        return {line["peer"]: line["requirement"] for line in csv.DictReader(lines)}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Compares peers' request fields with tests/peers/fields/*.csv.")
    parser.add_argument("peers", nargs="*", help="PEER, PEER==VERSION or PEER=PATH; all but fastdeploy by default")
    parser.add_argument("--write", action="store_true", help="rewrite the files")
    parser.add_argument("--standing", action="store_true", help="rewrite what becomes of the fields in the files")
    options = parser.parse_args(arguments)
    if options.standing:
        renew()
        return 0
    pinned, found = versions(), []
    for given in options.peers or [name for name in PEERS if name != "fastdeploy"]:
        peer, version, path = *given.partition("==")[::2], given.partition("=")[2]
        if version:
            pinned[peer] = f"{pinned[peer].partition('==')[0]}=={version}"
        elif path:
            peer = given.partition("=")[0]
        with tempfile.TemporaryDirectory() as folder:
            local = path and not version
            source = Path(path) if local else downloaded(pinned[peer], Path(folder))
            found += compare(peer, source, write=options.write)
    print("\n".join(found) or "No field is new, gone or has another default.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
