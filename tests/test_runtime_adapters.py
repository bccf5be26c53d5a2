"""Adapters that are loaded and unloaded while the server runs: whose answers change, when, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from servers import Server
from small_torch import Numbers
from test_adapters import folders
from test_sglang_examples import adapted

from tirage import LLM, ModelError, ParamsError, Prompt, SamplingParams, register_processor

__all__ = ["adapted", "folders"]
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
IDS = [5, 17, 60, 33, 8, 90]
HELD, GO_ON = threading.Event(), threading.Event()


def hold(logits: np.ndarray, args: list[dict[str, Any]]) -> np.ndarray:
    """The logits as they are, once the test has said so."""
    del args
    HELD.set()
    GO_ON.wait(30)
    return logits


@pytest.fixture(scope="module")
def llm(folders: dict[str, Path]) -> Iterator[LLM]:
    with LLM(folders["base"], tokenizer=Numbers(), adapters={"second": folders["second"]}, enable_lora=True) as opened:
        yield opened


def ids(llm: LLM, adapter: str | None) -> tuple[int, ...]:
    return llm.generate(Prompt(token_ids=IDS, adapter=adapter), GREEDY)[0].token_ids


@pytest.mark.slow
def test_an_adapter_that_comes_later_writes_what_it_writes_from_the_start(llm: LLM, folders: dict[str, Path]) -> None:
    with LLM(
        folders["base"], tokenizer=Numbers(), adapters={name: folders[name] for name in ("first", "second")}
    ) as all_:
        wanted = {name: ids(all_, name) for name in (None, "first", "second")}
    assert len(set(wanted.values())) == 3
    llm.engine.load_adapter("first", folders["first"])
    assert {name: ids(llm, name) for name in wanted} == wanted
    prompts = [Prompt(token_ids=IDS, adapter=name) for name in wanted]
    assert [one.token_ids for one in llm.generate(prompts, GREEDY)] == list(wanted.values())
    with pytest.raises(ParamsError, match="adapter must have a name of its own, got 'first', which is loaded"):
        llm.engine.load_adapter("first", folders["second"])
    llm.engine.unload_adapter("first")
    with pytest.raises(ParamsError, match="adapter must be a loaded one"):
        ids(llm, "first")
    # The same name for another adapter: nothing of the old one is left, not even its cached prefixes.
    llm.engine.load_adapter("first", folders["second"])
    assert ids(llm, "first") == wanted["second"]
    llm.engine.unload_adapter("first")
    assert ids(llm, None) == wanted[None]


@pytest.mark.slow
def test_an_adapter_is_unloaded_when_the_requests_that_use_it_have_ended(llm: LLM, folders: dict[str, Path]) -> None:
    register_processor("hold", hold, replace=True)
    llm.engine.load_adapter("first", folders["first"])
    wanted = ids(llm, "first")
    waited = llm.generate(Prompt(token_ids=IDS[1:], adapter="first"), GREEDY)[0].token_ids
    HELD.clear()
    GO_ON.clear()
    stream = llm.engine.submit(
        llm.request(Prompt(token_ids=IDS, adapter="first"), GREEDY.replace(logits_processors=[("hold", {})]))
    )
    late = llm.request(Prompt(token_ids=IDS, adapter="first"), GREEDY)
    assert HELD.wait(30)
    # Accepted while the engine is held up in a step, and begun when the adapter has been retired.
    waiting = llm.engine.submit(llm.request(Prompt(token_ids=IDS[1:], adapter="first"), GREEDY))
    unloading = threading.Thread(target=llm.engine.unload_adapter, args=("first",))
    unloading.start()
    while "first" in llm.model.adapters.names:
        threading.Event().wait(0.01)
    with pytest.raises(ParamsError, match="adapter must be a loaded one"):
        llm.engine.submit(late)
    assert unloading.is_alive()
    GO_ON.set()
    assert stream.wait().token_ids == wanted
    assert waiting.wait().token_ids == waited
    unloading.join(30)
    assert not unloading.is_alive()


@pytest.mark.slow
def test_what_cannot_be_loaded_or_unloaded_is_refused(llm: LLM, folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="must be a folder with adapter_config"):
        llm.engine.load_adapter("third", tmp_path)
    for name in ("second", "nobody"):
        with pytest.raises(ParamsError, match="adapter must be one that was loaded later"):
            llm.engine.unload_adapter(name)
    with (
        LLM(folders["base"], tokenizer=Numbers()) as fixed,
        pytest.raises(ParamsError, match="must be loaded with the model, unless it was opened with enable_lora=True"),
    ):
        fixed.engine.load_adapter("first", folders["first"])
    with pytest.raises(ParamsError, match="enable_lora must be False with dtype 'int8'"):
        LLM(folders["base"], tokenizer=Numbers(), enable_lora=True, dtype="int8")
    with pytest.raises(ParamsError, match="enable_lora must not be given on the NumPy backend"):
        LLM("tiny", enable_lora=True, backend="numpy")
    with pytest.raises(ParamsError, match="adapters must be loaded into a model that PyTorch runs"):
        LLM("tiny").engine.load_adapter("first", folders["first"])


# --- over the wire ---------------------------------------------------------------------------------------------------

ADMIN = {"authorization": "Bearer boss"}
VLLM, SGLANG = "/v1/{}_lora_adapter", "/{}_lora_adapter"


@pytest.fixture(scope="module")
def server(adapted: Path) -> Iterator[Server]:
    (adapted / "outside").symlink_to("/")
    flags = (
        f"--lora-root={adapted}",
        "--admin-key=boss",
        "--max-loaded-loras=1",
        "--served-model-name=base",
        "--threads=2",
    )
    with Server(adapted / "base", *flags) as running:
        yield running


def change(server: Server, path: str, status: int = 200, **body: Any) -> Any:
    reply = server.post(path, body, headers=ADMIN)
    assert reply.status_code == status, reply.text
    return reply


def answer(server: Server, model: str | None, status: int = 200) -> Any:
    body = {"prompt": [5, 17, 60], "max_tokens": 8, "temperature": 0, "ignore_eos": True, "model": model}
    reply = server.post("/v1/completions", {**body, "return_token_ids": True})
    assert reply.status_code == status, reply.text
    return reply.json()["choices"][0]["token_ids"] if status == 200 else reply.json()["error"]


def models(server: Server) -> list[str]:
    return [each["id"] for each in server.get("/v1/models").json()["data"]]


@pytest.mark.slow
def test_vllms_and_sglangs_routes_load_and_unload(server: Server) -> None:
    base = answer(server, "base")
    assert answer(server, "tuned", 404)["code"] == "model_not_found"
    done = change(server, VLLM.format("load"), lora_name="tuned", lora_path="first")
    assert done.text == "Success: LoRA adapter 'tuned' added successfully."
    assert models(server) == ["base", "tuned"]
    first = answer(server, "tuned")
    assert (first != base, answer(server, "base")) == (True, base)
    assert server.get("/model_info").json()["adapters"] == ["tuned"]
    done = change(server, VLLM.format("unload"), lora_name="tuned")
    assert done.text == "Success: LoRA adapter 'tuned' removed successfully."
    assert (models(server), answer(server, "tuned", 404)["param"]) == (["base"], "model")
    loaded = change(server, SGLANG.format("load"), lora_name="tuned", lora_path="second", pinned=True).json()
    assert loaded == {"success": True, "error_message": None, "loaded_adapters": {"tuned": "second"}}
    assert answer(server, "tuned") not in (base, first)
    assert change(server, SGLANG.format("unload"), lora_name="tuned").json()["loaded_adapters"] == {}


WRONG: list[tuple[str, dict[str, Any], int, str]] = [
    ("load", {"lora_name": "a", "lora_path": "../"}, 400, "lora_path"),
    ("load", {"lora_name": "a", "lora_path": "/etc"}, 400, "lora_path"),
    ("load", {"lora_name": "a", "lora_path": "outside/etc"}, 400, "lora_path"),
    ("load", {"lora_name": "a", "lora_path": "nowhere"}, 400, "lora_path"),
    ("load", {"lora_name": "a", "lora_path": "base"}, 400, "lora_path"),
    ("load", {"lora_name": "a", "lora_path": "a\0b"}, 400, "lora_path"),
    ("load", {"lora_name": "a", "lora_path": ""}, 400, "lora_path"),
    ("load", {"lora_name": "a"}, 400, "lora_path"),
    ("load", {"lora_path": "first"}, 400, "lora_name"),
    ("load", {"lora_name": "base", "lora_path": "first"}, 400, "lora_name"),
    ("load", {"lora_name": "a b", "lora_path": "first"}, 400, "lora_name"),
    ("load", {"lora_name": "a", "lora_path": "first", "lora_id": "1"}, 400, "lora_id"),
    ("unload", {"lora_name": "nobody"}, 404, "lora_name"),
    ("unload", {"lora_name": 3}, 400, "lora_name"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "body", "status", "param"), WRONG, ids=str)
def test_what_the_operator_has_not_allowed_is_refused(
    server: Server, adapted: Path, verb: str, body: dict[str, Any], status: int, param: str
) -> None:
    error = change(server, SGLANG.format(verb), status, **body).json()["error"]
    assert error["param"] == param
    assert str(adapted) not in error["message"]


@pytest.mark.slow
def test_only_the_admin_may_and_only_so_many(server: Server) -> None:
    body = {"lora_name": "tuned", "lora_path": "first"}
    assert server.post(VLLM.format("load"), body).status_code == 403
    change(server, VLLM.format("load"), **body)
    assert change(server, VLLM.format("load"), 400, **body).json()["error"]["param"] == "lora_name"
    full = change(server, VLLM.format("load"), 400, lora_name="more", lora_path="second").json()["error"]
    assert "--max-loaded-loras" in full["message"]
    change(server, VLLM.format("unload"), lora_name="tuned")


@pytest.mark.slow
def test_a_request_that_runs_keeps_its_adapter(server: Server) -> None:
    change(server, VLLM.format("load"), lora_name="tuned", lora_path="first")
    body = {"prompt": [5, 17, 60], "max_tokens": 60, "temperature": 0, "ignore_eos": True, "model": "tuned"}
    alone = server.post("/v1/completions", body).json()["choices"][0]["text"]
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda: answers.append(server.post("/v1/completions", body).json())) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    change(server, VLLM.format("unload"), lora_name="tuned")
    for thread in threads:
        thread.join()
    # Each came before the end of the adapter, and was answered by it, or after that, and was refused.
    answered = [each["choices"][0]["text"] for each in answers if "choices" in each]
    assert answered == [alone] * len(answered)
    assert {each["error"]["param"] for each in answers if "error" in each} <= {"model", "adapter"}
    assert models(server) == ["base"]


@pytest.mark.slow
def test_the_model_computes_on_as_many_threads_as_the_operator_says(server: Server) -> None:
    body = {"prompt": [5, 17, 60], "max_tokens": 2, "return_effective_params": True}
    record = server.post("/v1/completions", body).json()["effective_params"][0]
    assert record["model"]["numerics"]["threads"] == 2


def test_without_a_root_there_are_no_such_routes() -> None:
    from servers import shared

    for path in (VLLM, SGLANG):
        for verb in ("load", "unload"):
            assert shared().post(path.format(verb), {"lora_name": "a", "lora_path": "b"}).status_code == 404
