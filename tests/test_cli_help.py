"""The help of the commands: short, in groups, for lines of 80 columns; and the page that is made of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from tirage.cli import app, main
from tirage.cli.help import COMMON, option_groups
from tirage.cli.options import OPTIONS
from tirage.cli.reference import page
from tirage.server.options import FLAGS

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def helped(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_fits_a_screen_and_all_of_it_has_every_option(capsys: pytest.CaptureFixture[str], name: str) -> None:
    short = helped(capsys, name, "--help").splitlines()
    assert max(map(len, short)) <= 80
    assert len(short) <= 48
    every = helped(capsys, name, "--help-all")
    assert max(map(len, every.splitlines()), default=0) <= 80
    flags = [flag for param in COMMANDS[name].params for flag in param.opts if flag.startswith("-")]
    assert [flag for flag in flags if not re.search(rf"(?<![\w-]){flag}(?![\w-])", every)] == []


def test_help_all_is_the_help_where_nothing_is_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    hiding = set()
    for name in COMMANDS:
        short, every = helped(capsys, name, "--help"), helped(capsys, name, "--help-all")
        assert (short == every) is ("More options with --help-all" not in short)
        hiding |= set() if short == every else {name}
    assert hiding == {"generate", "chat", "batch", "explain", "serve"}


def test_ten_common_options_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    common = option_groups(COMMANDS["generate"])[COMMON]
    assert [param.name for param in common] == [
        *("model", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_tokens", "stop", "seed", "n")
    ]
    text = helped(capsys, "generate", "--help")
    assert "--dry-multiplier" not in text
    assert "More options with --help-all: Model (" in text


def test_every_option_is_in_a_group_and_says_what_it_takes() -> None:
    for name, command in COMMANDS.items():
        for param in command.params:
            place = f"{name} {param.name}"
            assert param.help, place
            assert param.metavar or getattr(param, "is_flag", False), place
    assert {param.name for param in COMMANDS["serve"].params} >= set(FLAGS)
    assert {param.name for param in COMMANDS["generate"].params} >= set(OPTIONS)


def test_the_page_of_the_command_line_is_up_to_date() -> None:
    written = (Path(__file__).parents[1] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written == page(), "run make docs"
