"""The playground in a real browser: what a person sees, does with the keyboard, and is told when something fails."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from browser import needs_chromium, open_browser
from servers import Server, shared, slow_server

pytestmark = [needs_chromium, pytest.mark.slow]

TOKENS = ".side:first-child .tokens > span"
ROWS = "#alternatives tbody tr"
WAIT_MS = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as browser:
        yield browser


@contextlib.contextmanager
def opened(browser: Any, url: str, **options: Any) -> Iterator[Any]:
    """A page of its own; fails for an error of a script, and for what the policy forbade."""
    context = browser.new_context(viewport={"width": 1400, "height": 900}, **options)
    context.set_default_timeout(WAIT_MS)
    page, errors = context.new_page(), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.goto(url)
    page.locator("#model:not(:text('loading')), #key-dialog[open]").first.wait_for()
    yield page
    context.close()
    assert [error for error in errors if not error.startswith("Failed to load resource")] == []


@pytest.fixture
def server() -> Server:
    return shared("tiny")


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Any]:
    with opened(browser, server.url) as page:
        page.locator(ROWS).first.wait_for()
        yield page


def shown_whole(page: Any, *, branch: str, finish: str) -> None:
    """Waits until a branch is shown, drawn to its end; the name of a branch comes a frame before its tokens."""
    page.get_by_text(f"branch {branch}").wait_for()
    page.locator("#stop").wait_for(state="hidden")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => done()))")
    assert finish in page.locator(".side:first-child .finish").inner_text()


def generate(page: Any) -> None:
    """Draws the texts, and waits for their ends."""
    page.click("#generate")
    page.locator("#generate").wait_for()
    for foot in page.locator(".finish").all():
        foot.filter(has_text="token").wait_for()


def look_at(page: Any, position: int) -> None:
    """Keeps a token, and waits for its explanation."""
    page.locator(TOKENS).nth(position).click()
    page.get_by_role("heading", name=f"Token {position + 1}", exact=True).wait_for()


def text_of(page: Any) -> str:
    return "".join(page.locator(TOKENS).all_text_contents())


def set_number(page: Any, name: str, value: float) -> None:
    page.fill(f"#number-{name}", str(value))
    page.locator(f"#number-{name}").blur()


def answer(server: Server, **params: Any) -> dict[str, Any]:
    body = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 100, **params}, "return_logprob": True}
    return server.post("/generate", body).json()


def test_the_text_is_the_servers_and_its_shades_are_the_models_probabilities(page: Any, server: Server) -> None:
    generate(page)
    raw = answer(server, temperature=0.8, top_p=0.95, seed=7, logprobs_mode="raw")
    assert text_of(page) == raw["text"]
    logprobs = [entry[0] for entry in raw["meta_info"]["output_token_logprobs"]]
    shades = [int(span.get_attribute("class")[1]) for span in page.locator(TOKENS).all()]
    bounds = (0.9, 0.5, 0.2, 0.05, 0.01)
    assert shades == [sum(2.718281828459045**each < bound for bound in bounds) for each in logprobs]


def test_a_token_shows_its_alternatives_and_which_stage_removed_them(page: Any) -> None:
    generate(page)
    look_at(page, 3)
    assert page.locator(f"{ROWS}.actual").count() == 1
    drawn = page.locator(f"{ROWS}.drawn button").inner_text()
    assert drawn.replace("␣", " ") == page.locator(TOKENS).nth(3).text_content()
    set_number(page, "top_k", 3)
    page.locator(f"{ROWS} td.out").nth(4).wait_for()
    titles = page.locator(f"{ROWS} td.out").evaluate_all("cells => cells.map(cell => cell.title)")
    assert titles
    assert all(re.fullmatch(r"removed by top_k; until then .* %", title) for title in titles)


def test_sliders_redraw_the_distribution_without_drawing_a_text(page: Any, server: Server) -> None:
    generate(page)
    look_at(page, 3)
    page.locator("#took", has_text="ms").wait_for()
    before, text = server.metric("tirage_completion_tokens_total"), text_of(page)
    page.locator("#range-top_p").fill("0.3")
    page.locator("#stages", has_text="top_p 0.3").wait_for()
    page.locator("#range-temperature").fill("0")
    page.locator("#headline", has_text="the only one that can be drawn").wait_for()
    assert server.metric("tirage_completion_tokens_total") == before
    assert text_of(page) == text


def test_another_token_begins_a_branch_and_the_first_text_comes_back(page: Any) -> None:
    generate(page)
    text, tokens = text_of(page), page.locator(TOKENS).all_text_contents()
    look_at(page, 3)
    other = page.locator(f"{ROWS}:not(.actual) button").first
    chosen = other.inner_text().replace("␣", " ")
    other.click()
    shown_whole(page, branch="2 of 2", finish="100 tokens")
    now = page.locator(TOKENS).all_text_contents()
    assert now[:4] == [*tokens[:3], chosen]
    assert page.locator(f"{TOKENS}.chosen").count() == 1
    look_at(page, 9)
    assert page.locator(f"{ROWS}.drawn.actual").count() == 1
    page.get_by_role("button", name="Branch before").click()
    shown_whole(page, branch="1 of 2", finish="100 tokens")
    assert text_of(page) == text


def test_two_sides_have_settings_of_their_own(page: Any, server: Server) -> None:
    page.check("#compare")
    page.get_by_role("radio", name="B").check()
    page.select_option("#semantics", "hf")
    set_number(page, "top_k", 5)
    generate(page)
    texts = ["".join(side.locator("span").all_text_contents()) for side in page.locator(".side .tokens").all()]
    common = {"temperature": 0.8, "top_p": 0.95}
    asked = [{**common, "seed": 7}, {**common, "seed": 8, "semantics": "hf", "top_k": 5}]
    assert texts == [answer(server, **params)["text"] for params in asked]
    heads = page.locator("#alternatives thead th").all_text_contents()
    assert heads[-2:] == ["A", "B"]


def test_structured_output_shows_what_is_allowed(page: Any) -> None:
    page.select_option("#constraint-kind", "json_schema")
    generate(page)
    assert json.loads(text_of(page)).keys() == {"name", "age"}
    look_at(page, 0)
    page.get_by_text("The constraint allows").wait_for()
    assert "{" in page.locator("#allowed .chips").inner_text()
    banned = page.locator(f"{ROWS}.fallen button[title='The constraint does not allow it']")
    assert banned.count() > 0
    assert banned.first.is_disabled()


def test_a_constrained_text_branches_and_keeps_to_its_constraint(page: Any) -> None:
    page.select_option("#constraint-kind", "regex")
    page.fill("#constraint", "[a-z]+( [a-z]+){5}\\.")
    page.locator("#allowed .chips").wait_for()
    generate(page)
    tokens = page.locator(TOKENS).all_text_contents()
    look_at(page, 2)
    other = page.locator(f"{ROWS}:not(.actual) button:not([disabled])").first
    chosen = other.inner_text().replace("␣", " ")
    other.click()
    shown_whole(page, branch="2 of 2", finish="the text has ended")
    assert page.locator(TOKENS).all_text_contents()[:3] == [*tokens[:2], chosen]
    assert re.fullmatch(r"[a-z]+( [a-z]+){5}\.", text_of(page).strip())
    look_at(page, 4)
    assert page.locator(f"{ROWS}.drawn.actual").count() == 1


def test_choosing_the_token_that_was_drawn_gives_the_same_text(page: Any) -> None:
    page.fill("#max-tokens", "20")
    generate(page)
    tokens = page.locator(TOKENS).all_text_contents()
    look_at(page, 4)
    page.locator(f"{ROWS}:not(.actual) button").first.click()
    shown_whole(page, branch="2 of 2", finish="20 tokens")
    look_at(page, 4)
    back = page.locator(f"{ROWS} button").filter(has_text=re.compile(f"^{re.escape(tokens[4].replace(' ', '␣'))}$"))
    back.first.click()
    shown_whole(page, branch="3 of 3", finish="20 tokens")
    assert page.locator(TOKENS).all_text_contents() == tokens


def test_a_constraint_with_a_mistake_is_explained_beside_it_and_kept(page: Any) -> None:
    generate(page)
    text = text_of(page)
    page.select_option("#constraint-kind", "json_schema")
    error = page.locator("#constraint-error")
    for typed, said in (('{"type": "str', "This is no JSON yet"), ('{"type": "strin"}', 'got "strin"')):
        page.fill("#constraint", typed)
        error.filter(has_text=said).wait_for()
        page.click("#generate")
        # It is looked at once more.
        page.locator("#constraint[aria-invalid=true]").wait_for()
        assert page.input_value("#constraint") == typed
        assert text_of(page) == text
    page.fill("#constraint", '{"type": "string"}')
    error.wait_for(state="hidden")


def test_the_keyboard_is_enough(page: Any) -> None:
    page.focus("#prompt")
    page.keyboard.press("Control+Enter")
    page.locator(".finish", has_text="tokens").wait_for()
    box = page.get_by_role("listbox")
    box.focus()
    for key, at in (("Home", 0), ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 99)):
        page.keyboard.press(key)
        assert box.get_attribute("aria-activedescendant") == f"token-0-{at}"
    page.keyboard.press("ArrowUp")
    above = int((box.get_attribute("aria-activedescendant") or "").rpartition("-")[2])
    assert 70 < above < 99
    page.keyboard.press("Enter")
    page.get_by_role("heading", name=f"Token {above + 1}", exact=True).wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("heading", name="Next token").wait_for()


def test_a_screen_reader_is_told_what_everything_is(page: Any) -> None:
    generate(page)
    told = page.locator("body").aria_snapshot()
    assert (
        re.findall(r"^\s*- (?:button|textbox|slider|spinbutton|combobox|listbox|option|checkbox|radio):?$", told, re.M)
        == []
    )
    assert re.search(r'option "there, \d+\.\d %"', told)
    assert page.get_by_role("status").inner_text().startswith("100 tokens.")
    assert page.get_by_role("slider", name="Temperature").get_attribute("aria-valuetext") == "0.8"


def test_a_link_brings_everything_but_the_text_and_the_key(page: Any, browser: Any) -> None:
    page.fill("#prompt", 'A cat "said" <b>é</b> 🐈')
    set_number(page, "min_p", 0.2)
    page.fill("#seed", "")
    page.select_option("#constraint-kind", "regex")
    page.click("#share")
    link = page.evaluate("location.href")
    with opened(browser, link) as other:
        assert other.input_value("#prompt") == 'A cat "said" <b>é</b> 🐈'
        assert other.input_value("#number-min_p") == "0.2"
        assert other.input_value("#seed") == ""
        assert other.input_value("#constraint-kind") == "regex"


def test_a_link_that_is_broken_or_forged_does_no_harm(browser: Any, server: Server) -> None:
    with opened(browser, f"{server.url}/#s=%%%") as page:
        assert "could not be read" in page.inner_text("#alert")
    forged = {
        "prompt": 5,
        "sides": [{"temperature": "hot", "seed": 1.5}, None],
        "messages": [{"role": "root"}],
        "mode": [],
    }
    with opened(browser, server.url) as page:
        fragment = page.evaluate("text => '#s=' + btoa(text)", json.dumps(forged))
    with opened(browser, f"{server.url}/{fragment}") as page:
        page.locator(ROWS).first.wait_for()
        assert page.input_value("#prompt") == "Once upon a time"
        assert page.input_value("#seed") == "7"


def test_markup_in_prompts_and_texts_stays_text(page: Any) -> None:
    bad = '<img src="x" onerror="document.title=1"><script>document.title=2</script>'
    page.get_by_role("radio", name="Chat").check()
    page.fill("#prompt", bad)
    page.select_option("#constraint-kind", "regex")
    page.fill("#constraint", re.escape(bad).replace(r"\"", '"').replace(r"\ ", " "))
    page.locator("#allowed .chips").wait_for()
    page.fill("#max-tokens", "120")
    generate(page)
    assert text_of(page).strip() == bad
    page.click("#reply")
    assert bad in page.locator("#messages li.assistant p").inner_text()
    assert page.locator("main img, main script").count() == 0
    assert page.title() == "tirage playground"


def test_a_chat_goes_on_from_its_messages(page: Any, server: Server) -> None:
    page.get_by_role("radio", name="Chat").check()
    page.fill("#system", "You are a cat.")
    page.fill("#prompt", "Who are you?")
    generate(page)
    messages = [{"role": "system", "content": "You are a cat."}, {"role": "user", "content": "Who are you?"}]
    params = {"temperature": 0.8, "top_p": 0.95, "seed": 7, "max_tokens": 100, "semantics": "sglang"}
    asked = server.post("/v1/chat/completions", {"messages": messages, **params}).json()
    page.click("#reply")
    assert page.locator("#messages li.assistant p").inner_text() == asked["choices"][0]["message"]["content"].strip()
    assert page.input_value("#prompt") == ""


def test_the_copied_code_draws_the_same_text(page: Any) -> None:
    page.fill("#prompt", 'Tom\'s "cat" \\ dog')
    page.fill("#max-tokens", "20")
    page.select_option("#semantics", "canonical")
    page.fill("#more", '{"top_a": 0.1}')
    page.select_option("#constraint-kind", "regex")
    page.fill("#constraint", "[a-z ]{5,30}")
    generate(page)
    text = text_of(page)
    page.click("#code")
    for name in ("Python, openai", "Python, tirage", "SGLang's /generate"):
        page.get_by_role("radio", name=name).check()
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(page.locator("#code-text").inner_text(), {})
        assert out.getvalue().strip("\n") == text, name
    page.get_by_role("radio", name="curl").check()
    if shutil.which("curl"):
        got = subprocess.run(["sh", "-c", page.locator("#code-text").inner_text()], capture_output=True, check=True)
        assert json.loads(got.stdout)["choices"][0]["text"] == text


def test_a_prompt_that_is_too_long_is_refused_and_kept(page: Any) -> None:
    generate(page)
    text, long = text_of(page), "word " * 2000
    page.fill("#prompt", long)
    page.click("#generate")
    page.get_by_role("alert").get_by_text("must hold at most").wait_for()
    assert page.input_value("#prompt") == long
    assert text_of(page) == text


def test_a_key_is_asked_for_and_forgotten(browser: Any) -> None:
    with opened(browser, shared("tiny", "--api-key", "the-key").url) as page:
        for typed in ("wrong", "the-key"):
            page.locator("#key").fill(typed)
            page.click("#key-form button")
        page.locator(ROWS).first.wait_for()
        generate(page)
        page.click("#share")
        kept = page.evaluate("[localStorage.length, sessionStorage.length, document.cookie, location.href]")
        assert kept[:3] == [0, 0, ""]
        assert "the-key" not in kept[3]
        page.click("#code")
        assert "$TIRAGE_API_KEY" in page.locator("#code-text").inner_text()


def test_a_stream_that_is_stopped_or_cut_leaves_its_text_and_says_so(browser: Any) -> None:
    with slow_server(step_s=0.02) as server, opened(browser, server.url) as page:
        page.fill("#max-tokens", "400")
        page.click("#generate")
        page.locator(TOKENS).nth(5).wait_for()
        page.click("#stop")
        page.locator(".finish", has_text="stopped").wait_for()
        assert 5 < page.locator(TOKENS).count() < 400
        page.reload()
        page.fill("#max-tokens", "400")
        page.click("#generate")
        page.locator(TOKENS).nth(10).wait_for()
        server.process.kill()
        page.get_by_role("alert").get_by_text("What had come is kept").wait_for()
        assert page.locator(TOKENS).count() > 10
        page.click("#generate")
        page.get_by_role("alert").get_by_text("does not answer").wait_for()
        assert page.locator(TOKENS).count() > 10


CONTRAST = """() => {
  const light = (color) => {
    const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map(Number).map((each) => each / 255)
      .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = light(getComputedStyle(document.querySelector(".card")).backgroundColor);
  const texts = [...document.querySelectorAll("p, label, h2, .tokens > span, #alternatives th, #stages span")];
  return Math.min(...texts.map((text) => {
    const ink = light(getComputedStyle(text).color);
    return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  }));
}"""


@pytest.mark.parametrize(("scheme", "width"), [("light", 360), ("dark", 1400)])
def test_the_page_is_legible_and_fits(browser: Any, server: Server, scheme: str, width: int) -> None:
    with opened(browser, server.url, color_scheme=scheme) as page:
        page.set_viewport_size({"width": width, "height": 700})
        generate(page)
        look_at(page, 2)
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width
        assert page.evaluate(CONTRAST) >= 4.5
