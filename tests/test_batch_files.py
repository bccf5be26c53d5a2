"""Files of prompts: results that follow from the rows alone, whatever the parts, the order, or the interruptions."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from servers import limited

from tirage import LLM, ModelError, ParamsError, RequestOutputKind, SamplingParams, seeds
from tirage.cluster import Cluster, Summary, generate, seed_of
from tirage.cluster import input_file as input_files
from tirage.cluster import output_folder as output_folders
from tirage.cluster.openai_rows import repeatable

COMMON = SamplingParams(top_p=0.9, max_tokens=3)


@pytest.fixture(scope="module")
def llm() -> Iterable[LLM]:
    with LLM(backend="numpy") as made:
        yield made


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_files, "PART_LINES", 4)


def rows(count: int) -> list[dict[str, Any]]:
    words = ("Once upon a time", "The dog", "She said")
    return [{"id": f"r{i}", "prompt": words[i % 3], "params": {"max_tokens": 1 + i % 4}} for i in range(count)]


def written(path: Path, lines: Iterable[Mapping[str, Any] | bytes]) -> Path:
    parts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(parts) + b"\n")
    return path


def contents(out: Path) -> dict[str, bytes]:
    """Every file of results and errors, by its name."""
    return {str(file.relative_to(out)): file.read_bytes() for file in sorted(out.rglob("*.jsonl"))}


def results(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(out.glob("*.jsonl")) for line in file.read_text().splitlines()]


def errors(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(out.glob("errors/*")) for line in file.read_text().splitlines()]


def test_a_row_is_drawn_with_the_seed_of_its_id(llm: LLM, tmp_path: Path) -> None:
    done = generate(written(tmp_path / "in.jsonl", rows(6)), COMMON, out=tmp_path / "out", model=llm)
    assert done == Summary(rows=6, earlier=0, failed=0)
    for row, result in zip(rows(6), results(tmp_path / "out"), strict=True):
        params = COMMON.replace(**row["params"], seed=seed_of(row["id"]))
        alone = llm.generate(row["prompt"], params)[0]
        assert result == {
            "id": row["id"], "text": alone.text, "token_ids": list(alone.token_ids),
            "finish_reason": alone.finish_reason, "seed": seed_of(row["id"]),
        }  # fmt: skip


def test_seeds_follow_from_the_id_and_the_seed_of_the_run() -> None:
    key = int.from_bytes(hashlib.sha256(b"0:r0").digest()[:8], "big", signed=True)
    assert [seed_of("r0")] == seeds(key, 1) == [2828286332970852368]
    assert seed_of("7") == seed_of(7) != seed_of(7, 1)
    assert all(0 <= seed_of(i) < 2**63 for i in range(100))


def test_a_seed_of_the_run_changes_all_rows_but_those_with_one_of_their_own(llm: LLM, tmp_path: Path) -> None:
    file = written(tmp_path / "in.jsonl", [*rows(1), {"id": "own", "prompt": "a", "params": {"seed": 5}}])
    generate(file, COMMON.replace(seed=3), out=tmp_path / "out", model=llm)
    assert [each["seed"] for each in results(tmp_path / "out")] == [seed_of("r0", 3), 5]


def test_order_and_company_change_nothing(llm: LLM, tmp_path: Path) -> None:
    given = rows(11)
    generate(written(tmp_path / "a.jsonl", given), COMMON, out=tmp_path / "a", model=llm)
    random.Random(1).shuffle(given)
    generate(written(tmp_path / "b.jsonl", given[:7]), COMMON, out=tmp_path / "b", model=llm)
    generate(written(tmp_path / "c.jsonl", given[7:]), COMMON, out=tmp_path / "c", model=llm)
    joined = results(tmp_path / "b") + results(tmp_path / "c")
    assert sorted(joined, key=lambda each: each["id"]) == sorted(results(tmp_path / "a"), key=lambda each: each["id"])


def test_lines_that_are_wrong_are_reported_and_the_rest_is_done(llm: LLM, tmp_path: Path) -> None:
    lines: list[Mapping[str, Any] | bytes] = [
        *rows(2), b"{bad", b"", b"\xff", {"prompt": "a"}, {"id": "x"}, {"id": "y", "prompt": "a", "parms": {}},
        {"id": "z", "prompt": "a", "params": {"top_p": 7}}, {"id": "t", "prompt": [10**9]}, {"id": [], "prompt": "a"},
        {"id": "k", "prompt": 5}, {"id": "d", "prompt": "a", "params": {"output_kind": "DELTA"}},
        {"id": "last", "prompt": "a"},
    ]  # fmt: skip
    done = generate(written(tmp_path / "in.jsonl", lines), COMMON, out=tmp_path / "out", model=llm)
    assert done == Summary(rows=13, earlier=0, failed=10)
    assert [each["id"] for each in results(tmp_path / "out")] == ["r0", "r1", "last"]
    told = {each["line"]: each["error"] for each in errors(tmp_path / "out")}
    assert list(told) == [3, 5, 6, 7, 8, 9, 10, 11, 12, 13]
    assert [each["id"] for each in errors(tmp_path / "out")] == [None, None, None, *"xyzt", None, *"kd"]
    for line, words in {3: "JSON", 6: "id must be", 7: "either prompt", 8: "did you mean 'params'", 9: "top_p"}.items():
        assert words in told[line]


def test_the_error_of_a_row_has_its_id_whatever_else_is_wrong(llm: LLM, tmp_path: Path) -> None:
    lines: list[Mapping[str, Any] | bytes] = [
        {"id": "c"}, {"id": "i", "prompt": "x", "messages": []}, {"id": "k", "prompt": "x", "extra": 1},
        {"id": 7, "prompt": "x", "params": [1]}, {"id": True, "prompt": "x"}, {"id": "", "extra": 1}, b"{bad", b"[1]",
    ]  # fmt: skip
    generate(written(tmp_path / "in.jsonl", lines), COMMON, out=tmp_path / "out", model=llm)
    expected = ["c", "i", "k", 7, None, None, None, None]
    assert [each["id"] for each in errors(tmp_path / "out")] == expected


def test_samples_of_a_row_have_an_index_and_logprobs_their_entries(llm: LLM, tmp_path: Path) -> None:
    row = {"id": 1, "prompt": "The dog", "params": {"n": 2, "logprobs": 1, "prompt_logprobs": 0}}
    generate(written(tmp_path / "in.jsonl", [row]), COMMON, out=tmp_path / "out", model=llm)
    first, second = results(tmp_path / "out")
    assert (first["index"], second["index"]) == (0, 1)
    assert len(first["logprobs"]) == len(first["token_ids"])
    assert len(first["logprobs"][0]["top"]) == 1
    assert first["prompt_logprobs"][0] is None
    assert first["prompt_logprobs"][1]["token_id"] == llm.tokenizer.encode("The dog")[1]


def test_conversations(llm: LLM, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hello"}]
    generate(written(tmp_path / "in.jsonl", [{"id": 1, "messages": messages}]), COMMON, out=tmp_path / "o", model=llm)
    assert results(tmp_path / "o")[0]["text"] == llm.chat(messages, COMMON.replace(seed=seed_of(1))).text


class StoppedError(BaseException):
    """An interruption at a chosen place."""


@pytest.mark.slow
def test_a_run_that_is_interrupted_anywhere_ends_as_one_that_was_not(
    llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "in.jsonl", [*rows(18), b"{bad"])
    generate(file, COMMON, out=tmp_path / "whole", model=llm)
    write = output_folders.write_whole

    def stopping(left: int, *, torn: bool) -> Callable[[Path, bytes], None]:
        """`write_whole` that stops the run instead of the write after `left` others, or in the middle of it."""
        count = itertools.count()

        def stopped(target: Path, content: bytes) -> None:
            if next(count) < left:
                write(target, content)
                return
            if torn:
                target.with_name(f".{target.name}.tmp").write_bytes(content[: len(content) // 2])
            raise StoppedError

        return stopped

    stops = 0
    for left, torn in ((0, True), (0, False), (1, True), (2, False), (1, False), (0, True), (9, False)):
        monkeypatch.setattr(output_folders, "write_whole", stopping(left, torn=torn))
        try:
            generate(file, COMMON, out=tmp_path / "out", model=llm)
        except StoppedError:
            stops += 1
    assert stops >= 6
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_finished_run_does_nothing_again(llm: LLM, tmp_path: Path) -> None:
    file = written(tmp_path / "in.jsonl", [*rows(5), b"{bad"])
    first = generate(file, COMMON, out=tmp_path / "out", model=llm)
    stamps = {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in contents(tmp_path / "out")}
    assert first == Summary(rows=6, earlier=0, failed=1)
    assert generate(file, COMMON, out=tmp_path / "out", model=llm) == Summary(rows=0, earlier=6, failed=1)
    assert stamps == {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in contents(tmp_path / "out")}


@pytest.mark.parametrize("change", ["input", "params", "folder"])
def test_a_folder_of_another_run_is_refused(llm: LLM, tmp_path: Path, change: str) -> None:
    file = written(tmp_path / "in.jsonl", rows(5))
    out = tmp_path / "out"
    if change == "folder":
        out.mkdir()
        (out / "old.jsonl").write_text("{}\n")
    else:
        generate(file, COMMON, out=out, model=llm)
    if change == "input":
        written(file, rows(6))
    before = contents(out)
    with pytest.raises(ParamsError, match=r"out must be a (new )?folder"):
        generate(file, COMMON.replace(top_k=3) if change == "params" else COMMON, out=out, model=llm)
    assert contents(out) == before


def test_one_run_at_a_time_writes_to_a_folder(llm: LLM, tmp_path: Path) -> None:
    file = written(tmp_path / "in.jsonl", rows(1))
    with output_folders.OutputFolder(tmp_path / "out", {}), pytest.raises(ParamsError, match="no other run"):
        generate(file, COMMON, out=tmp_path / "out", model=llm)


def test_a_file_that_is_not_there_is_named(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match="input must be a readable file"):
        generate(tmp_path / "none.jsonl", COMMON, out=tmp_path / "out", model=llm)
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="pipes have no names here")
def test_a_pipe_which_can_be_read_once_is_refused(llm: LLM, tmp_path: Path) -> None:
    read, write = os.pipe()
    try:
        os.write(write, json.dumps(rows(1)[0]).encode())
        os.close(write)
        with pytest.raises(
            ParamsError, match=f"input must be a file, which is read several times, got /dev/fd/{read}; "
        ):
            generate(f"/dev/fd/{read}", COMMON, out=tmp_path / "out", model=llm)
    finally:
        os.close(read)


@pytest.mark.parametrize("options", [{}, {"backend": "auto", "dtype": None}, {"dialect": "tirage"}])
@pytest.mark.parametrize("cluster", [None, Cluster()])
def test_the_address_of_a_server_is_no_model_for_rows(
    options: dict[str, Any], cluster: Cluster | None, tmp_path: Path
) -> None:
    file = written(tmp_path / "in.jsonl", rows(1))
    with pytest.raises(ModelError, match=r"^model must be in this process here, got 'http://localhost:1'; give its fo"):
        generate(file, COMMON, out=tmp_path / "out", model="http://localhost:1", cluster=cluster, **options)


def test_progress_counts_rows(llm: LLM, tmp_path: Path) -> None:
    seen: list[tuple[float, int]] = []
    file = written(tmp_path / "in.jsonl", rows(5))
    generate(file, COMMON, out=tmp_path / "out", model=llm, progress=lambda *at: seen.append(at))
    assert [each for each in seen if each[0] == int(each[0])] == [(i, 5) for i in range(6)]
    assert all(0 <= done <= 5 and total == 5 for done, total in seen)


def test_lines_of_openais_form_that_are_refused_are_named_by_their_own_id(llm: LLM, tmp_path: Path) -> None:
    url, body = "/v1/completions", {"prompt": "The"}
    lines = [
        {"custom_id": "a", "url": url, "body": {"prompt": "The", "stream": True}},
        {"custom_id": "b", "method": "GET", "url": url, "body": body},
        {"custom_id": "c", "url": "/v1/embeddings", "body": {}},
        {"custom_id": 7, "url": url, "body": "The"},
        {"custom_id": [], "url": url, "body": body},
        {"custom_id": "e", "url": url, "body": body, "top_k": 2},
    ]
    generate(written(tmp_path / "in.jsonl", lines), SamplingParams(top_k=2), out=tmp_path / "out", model=llm)
    found = errors(tmp_path / "out")
    assert [each["custom_id"] for each in found] == ["a", "b", "c", 7, None, "e"]
    assert all(set(each) == {"line", "custom_id", "error"} for each in found)


@pytest.mark.slow
def test_lines_of_openais_form_are_answered_by_the_routes(llm: LLM, tmp_path: Path) -> None:
    lines = [
        {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "The", "max_tokens": 4}},
        {"custom_id": "b", "method": "POST", "url": "/v1/chat/completions",
         "body": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "logprobs": True}},
        {"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": {"prompt": "The", "top_p": 7}},
        {"custom_id": "d", "method": "POST", "url": "/v1/embeddings", "body": {}},
        {"custom_id": "e", "url": "/v1/completions", "body": {"prompt": "The", "stream": True}},
    ]  # fmt: skip
    file = written(tmp_path / "in.jsonl", lines)
    generate(file, out=tmp_path / "out", model=llm)
    first, second = results(tmp_path / "out")
    alone = llm.generate("The", SamplingParams(max_tokens=4, temperature=1.0, seed=seed_of("a")))[0]
    assert first["response"]["body"]["choices"][0]["text"] == alone.text
    assert (second["custom_id"], second["response"]["status_code"]) == ("b", 200)
    assert len(second["response"]["body"]["choices"][0]["logprobs"]["content"]) == 4
    assert [each["line"] for each in errors(tmp_path / "out")] == [3, 4, 5]
    generate(file, out=tmp_path / "again", model=llm)
    assert contents(tmp_path / "again") == contents(tmp_path / "out")


def called(text: str, **options: Any) -> dict[str, Any]:
    """The body of a chat that answers with the calls in a text."""
    tool = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}}
    asked = {"messages": [{"role": "user", "content": "hi"}], "tools": [tool], "guided_choice": [text]}
    return {**asked, "max_tokens": 120, **options}


def test_ids_of_tool_calls_follow_from_the_row(llm: LLM, tmp_path: Path) -> None:
    call = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'
    bodies = {"a": called(call + call, n=2), "b": called(call), "c": called(call)}
    url = "/v1/chat/completions"
    lines = [{"custom_id": name, "method": "POST", "url": url, "body": body} for name, body in bodies.items()]
    file = written(tmp_path / "in.jsonl", lines)
    for name in ("out", "again"):
        generate(file, out=tmp_path / name, model=llm)
    answers = [each["response"]["body"]["choices"] for each in results(tmp_path / "out")]
    ids = [call["id"] for choices in answers for choice in choices for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == len(ids) == 6
    assert all(re.fullmatch("call_[0-9a-f]{24}", each) for each in ids)
    assert contents(tmp_path / "again") == contents(tmp_path / "out")


def test_ids_of_tool_calls_keep_their_form_and_are_told_apart() -> None:
    # The form that Mistral's templates require, and a name whose number is the largest of that form.
    named = [{"message": {"content": None, "tool_calls": [{"id": "abcdef012"}] * 3}}, {"message": {"content": "x"}}]
    found = repeatable({"id": "chatcmpl-1", "choices": named}, "f" * 24)["choices"]
    assert [call["id"] for call in found[0]["message"]["tool_calls"]] == ["f" * 9, "0" * 9, "0" * 8 + "1"]
    assert found[1] == named[1]


@pytest.mark.slow
def test_parameters_of_the_run_hold_for_openais_form_or_fail_the_row(llm: LLM, tmp_path: Path) -> None:
    bodies = [{"prompt": "The"}, {"prompt": "The", "max_tokens": 2}]
    lines = [{"custom_id": i, "url": "/v1/completions", "body": body} for i, body in enumerate(bodies)]
    file = written(tmp_path / "in.jsonl", lines)
    generate(file, SamplingParams(max_tokens=5, seed=1), out=tmp_path / "out", model=llm)
    used = [each["response"]["body"]["usage"]["completion_tokens"] for each in results(tmp_path / "out")]
    assert used == [5, 2]
    generate(file, SamplingParams(top_k=2), out=tmp_path / "other", model=llm)
    assert ["top_k must stand in the body" in each["error"] for each in errors(tmp_path / "other")] == [True, True]


def test_a_wrong_parameter_of_a_row_names_the_default_that_holds_for_rows(llm: LLM, tmp_path: Path) -> None:
    url = "/v1/completions"
    lines = [
        {"id": "a", "prompt": "a", "params": {"max_tokens": -1}},
        {"id": "b", "prompt": "a", "params": {"logprobs_mode": "x"}},
        {"id": "c", "prompt": "a", "params": {"top_p": 0}},
        {"custom_id": "d", "url": url, "body": {"prompt": "a", "max_tokens": -1}},
        {"custom_id": "e", "url": url, "body": {"prompt": "a", "max_completion_tokens": 5, "max_tokens": "x"}},
    ]
    params = SamplingParams(max_tokens=128)
    generate(written(tmp_path / "in.jsonl", lines), params, out=tmp_path / "out", model=llm)
    rule = "max_tokens must be an integer >= 0 or None, got"
    assert [each["error"] for each in errors(tmp_path / "out")] == [
        f"{rule} -1; leave it out for the default, 128",
        "logprobs_mode must be one of 'raw', 'processed', 'sampled', got 'x'; leave it out for the default, 'raw'",
        "top_p must be in (0, 1], got 0; use 1.0 to turn it off",
        f"{rule} -1; leave it out for the default, 128",
        f"{rule} 'x'; leave it out for the default, 128",
    ]


def test_the_limit_of_the_run_holds_for_openais_form_whatever_it_is(llm: LLM, tmp_path: Path) -> None:
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "ignore_eos": True}
    bodies = [chat, {**chat, "max_tokens": None}, {**chat, "max_completion_tokens": None, "max_tokens": 3}]
    lines = [{"custom_id": i, "url": "/v1/chat/completions", "body": body} for i, body in enumerate(bodies)]
    lines += [{"custom_id": "p", "url": "/v1/completions", "body": {"prompt": "The", "max_tokens": None}}]
    file = written(tmp_path / "in.jsonl", lines)

    def used(out: Path) -> list[int]:
        return [each["response"]["body"]["usage"]["completion_tokens"] for each in results(out)]

    # 16 is what SamplingParams has by itself, and what completions have; chats have no limit of their own.
    generate(file, SamplingParams(max_tokens=16), out=tmp_path / "a", model=llm)
    assert used(tmp_path / "a") == [16, 16, 3, 16]
    generate(file, SamplingParams(max_tokens=7), out=tmp_path / "b", model=llm)
    assert used(tmp_path / "b") == [7, 7, 3, 7]
    generate(file, SamplingParams(max_tokens=None), out=tmp_path / "c", model=llm)
    assert used(tmp_path / "c")[0] > 100
    [refused] = errors(tmp_path / "c")
    assert refused["custom_id"] == "p"
    assert refused["error"].startswith("max_tokens must stand in the body of a row for /v1/completions, got None")


def test_parameters_without_a_place_are_refused_and_detokenize_is_followed(llm: LLM, tmp_path: Path) -> None:
    file = written(tmp_path / "in.jsonl", rows(1))
    with pytest.raises(ParamsError, match="output_kind must be left out"):
        generate(file, COMMON.replace(output_kind=RequestOutputKind.DELTA), out=tmp_path / "a", model=llm)
    generate(file, COMMON.replace(detokenize=False), out=tmp_path / "b", model=llm)
    (only,) = results(tmp_path / "b")
    assert only["text"] == ""
    assert only["token_ids"]


@pytest.mark.slow
def test_parquet_has_what_json_lines_have(llm: LLM, tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    asked = {"custom_id": "c", "url": "/v1/completions", "body": {"prompt": "The", "max_tokens": 2}}
    lines = [{"id": "a", "prompt": "The", "params": {"logprobs": 0, "prompt_logprobs": 0, "max_tokens": 2}}, asked]
    file = written(tmp_path / "in.jsonl", lines)
    generate(file, out=tmp_path / "lines", model=llm)
    generate(file, out=tmp_path / "table", model=llm, output="parquet")
    own, openai = results(tmp_path / "lines")
    first, second = parquet.read_table(tmp_path / "table" / "part-000000.parquet").to_pylist()
    for name in ("logprobs", "prompt_logprobs"):
        assert json.loads(first[name]) == own[name]
    assert (first["response"], first["token_ids"], second["id"]) == (None, own["token_ids"], "c")
    assert json.loads(second["response"]) == openai["response"]


@pytest.mark.slow
def test_parquet_in_and_out(llm: LLM, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    given = [{"id": i, "prompt": "The dog", "params": {"max_tokens": 2 + i % 2, "top_k": None}} for i in range(9)]
    parquet.write_table(pyarrow.Table.from_pylist(given), tmp_path / "in.parquet")
    generate(tmp_path / "in.parquet", COMMON, out=tmp_path / "out", model=llm, output="parquet")
    found = [
        row for file in sorted((tmp_path / "out").glob("*.parquet")) for row in parquet.read_table(file).to_pylist()
    ]
    lines = [{**row, "params": {"max_tokens": row["params"]["max_tokens"]}} for row in given]
    generate(written(tmp_path / "in.jsonl", lines), COMMON, out=tmp_path / "lines", model=llm)
    assert [row["text"] for row in found] == [row["text"] for row in results(tmp_path / "lines")]
    assert [row["id"] for row in found] == [str(i) for i in range(9)]


def table(path: Path, **columns: Any) -> Path:
    import pyarrow
    import pyarrow.parquet as parquet

    parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.mark.parametrize("text", ["[" * 100_000, '{"top_k": 1, "top_k": 2}', '{"top_k": 1e999}', "[]", "", "null {}"])
def test_a_text_of_params_in_a_table_is_read_as_strictly_as_a_line(llm: LLM, tmp_path: Path, text: str) -> None:
    file = table(tmp_path / "in.parquet", id=["a", "b"], prompt=["The", "The"], params=[text, '{"max_tokens": 1}'])
    done = generate(file, COMMON, out=tmp_path / "out", model=llm)
    assert (done.rows, done.failed) == (2, 1)
    (error,) = (json.loads(line) for line in contents(tmp_path / "out")["errors/part-000000.jsonl"].splitlines())
    assert error["id"] == "a"
    assert error["error"].startswith("params must be an object of sampling parameters, got ")


@pytest.mark.parametrize("params", [[], "", 0, False])
def test_params_that_are_no_object_are_refused(llm: LLM, tmp_path: Path, params: Any) -> None:
    lines = [{"id": 1, "prompt": "The", "params": params}, {"id": 2, "prompt": "The", "params": None}]
    done = generate(written(tmp_path / "in.jsonl", lines), COMMON, out=tmp_path / "out", model=llm)
    assert [row["id"] for row in results(tmp_path / "out")] == [2]
    assert done.failed == 1


def test_bytes_in_a_table_are_no_prompt(llm: LLM, tmp_path: Path) -> None:
    file = table(tmp_path / "in.parquet", id=["a"], prompt=[b"The"])
    assert generate(file, COMMON, out=tmp_path / "out", model=llm).failed == 1
    (error,) = contents(tmp_path / "out")["errors/part-000000.jsonl"].splitlines()
    assert json.loads(error)["error"].startswith("prompt must be a text or a list of token ids, got {'bytes': ")


@pytest.mark.parametrize("declared", [39, 41, -5])
def test_a_table_with_other_rows_than_it_declares_is_refused(llm: LLM, tmp_path: Path, declared: int) -> None:
    file = table(tmp_path / "in.parquet", id=list(range(40)), prompt=["The"] * 40)
    data = file.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    # The number of rows is the first that the footer has: a Thrift integer, in zigzag form.
    at = data.index(bytes([2 * 40]), start)
    zigzag = 2 * declared if declared >= 0 else -2 * declared - 1
    file.write_bytes(data[:at] + bytes([zigzag]) + data[at + 1 :])
    with pytest.raises(ParamsError, match=rf"^input must have as many rows as its metadata declare, {declared}, got "):
        generate(file, COMMON, out=tmp_path / "out", model=llm)
    assert not (tmp_path / "out").exists()


def test_a_damaged_table_is_named_before_any_work(llm: LLM, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    far = table(tmp_path / "far.parquet", id=pyarrow.array([2**30], pyarrow.date32()), prompt=["The"])
    cut = table(tmp_path / "cut.parquet", id=["a" * 99], prompt=["The"])
    cut.write_bytes(spoiled(cut))
    two = pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 3, names=["id", "prompt", "prompt"])
    parquet.write_table(two, tmp_path / "two.parquet")
    for file, message in (
        (far, "input must be a Parquet file that can be read, got "),
        (cut, "input must be a Parquet file that can be read, got "),
        (tmp_path / "two.parquet", "input must name each column once, got 'prompt' twice"),
    ):
        with pytest.raises(ParamsError, match=f"^{message}"):
            generate(file, COMMON, out=tmp_path / "out", model=llm)
    assert not (tmp_path / "out").exists()


def spoiled(file: Path) -> bytes:
    """The bytes of a table, the first page of which is destroyed."""
    data = file.read_bytes()
    return data[:4] + b"\xff" * 40 + data[44:]


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"3", b"\xff", b"[" * 100_000])
def test_a_damaged_record_of_a_run_is_named(llm: LLM, tmp_path: Path, text: bytes) -> None:
    file, out = written(tmp_path / "in.jsonl", rows(1)), tmp_path / "out"
    generate(file, COMMON, out=out, model=llm)
    (out / "run.json").write_bytes(text)
    with pytest.raises(ParamsError, match=r"run\.json must be .*; take another folder$"):
        generate(file, COMMON, out=out, model=llm)


def test_a_file_in_the_place_of_a_folder_is_named(llm: LLM, tmp_path: Path) -> None:
    file, out = written(tmp_path / "in.jsonl", [*rows(1), b"{"]), tmp_path / "out"
    with pytest.raises(ParamsError, match=r"^out must be a folder, with one for errors, got the file "):
        generate(file, COMMON, out=file, model=llm)
    generate(file, COMMON, out=out, model=llm)
    (out / "errors" / "part-000000.jsonl").write_bytes(b"\xff\n")
    with pytest.raises(ParamsError, match=r"part-000000\.jsonl must be JSON as a run wrote it, got other text"):
        generate(file, COMMON, out=out, model=llm)


def command(file: Path, out: Path) -> list[str]:
    options = ("--backend", "numpy", "--max-tokens", "2", "--quiet")
    return [sys.executable, "-m", "tirage", "batch", str(file), "--out", str(out), *options]


@pytest.mark.exhaustive
def test_killed_at_random_places_twenty_times(tmp_path: Path) -> None:
    file = written(tmp_path / "in.jsonl", [{"id": i, "prompt": "The dog"} for i in range(20_000)])
    subprocess.run(command(file, tmp_path / "whole"), check=True)
    parts, chance = len(contents(tmp_path / "whole")), random.Random(7)
    kills = 0
    while kills < 20:
        process = subprocess.Popen(command(file, tmp_path / "out"))
        target = min(parts - 1, len(contents(tmp_path / "out")) + chance.randint(1, max(1, parts // 25)))
        while process.poll() is None and len(contents(tmp_path / "out")) < target:
            time.sleep(0.002)
        time.sleep(chance.random() * 0.05)
        assert process.poll() is None, "the run has ended before it was killed twenty times"
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    subprocess.run(command(file, tmp_path / "out"), check=True)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_a_full_disk_ends_the_run_and_the_next_goes_on(tmp_path: Path) -> None:
    file = written(tmp_path / "in.jsonl", [{"id": "x" * 400 + str(i), "prompt": "The dog"} for i in range(300)])
    subprocess.run(command(file, tmp_path / "whole"), check=True)

    # Blocks of 512 bytes.
    full = subprocess.run(limited(("-f 117",), *command(file, tmp_path / "out")), capture_output=True)
    assert full.returncode == 1
    assert b"File too large" in full.stderr
    assert not list((tmp_path / "out").rglob("*.tmp"))
    subprocess.run(command(file, tmp_path / "out"), check=True)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
