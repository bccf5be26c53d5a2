"""Chat templates of hostile folders: whatever they compute, reading and rendering them ends, and the next one works."""

from __future__ import annotations

import pytest

from tirage.errors import ModelError, ParamsError
from tirage.text.template import Template

GIVEN = {"messages": [{"role": "user", "content": "a" * 100}]}
LATER = {
    "a constant product of texts": "{{ ('a' * 10**9) | length }}",
    "a wide format": "{{ '%999999999d' | format(1) | length }}",
    "a power": "{{ (messages | length + 2)**(10**9) % 7 }}",
    "a product": (
        "{% set n = namespace(v=messages | length + 9) %}{% for i in range(99) %}{% set n.v = n.v * n.v %}{% endfor %}"
    ),
    "a product of texts": "{{ (messages[0].content * 10**8) | length }}",
    "joined texts": (
        "{% set n = namespace(v=messages[0].content) %}{% for i in range(60) %}{% set n.v = n.v ~ n.v %}{% endfor %}"
    ),
    "loops without a call": (
        "{% set l = messages[0].content * 99 %}{% for a in l %}{% for b in l %}{% for c in l %}{% endfor %}{% endfor %}"
        "{% endfor %}"
    ),
    "recursion": "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(messages) }}",
    "recursion that branches": (
        "{% macro m(x) %}{{ m(x - 1) ~ m(x - 1) if x else 'a' }}{% endmacro %}{{ m(messages | length + 60) }}"
    ),
    "a wide text": "{{ messages[0].content.ljust(10**10) | length }}",
    "a filter": "{{ messages[0].content | center(10**10) | length }}",
    "replaced texts": "{{ (messages[0].content * 9999).replace('a', messages[0].content * 9999) | length }}",
    "many words": "{{ lipsum(10**9) | length }}",
    "a slice": "{{ messages | slice(10**10) | list | length }}",
}


@pytest.mark.slow
def test_a_power_that_jinja_computes_while_it_reads_a_template_refuses_the_template() -> None:
    with pytest.raises(ModelError, match=r"^the chat template must be readable within 1 s, got"):
        Template("{{ 10**(10**9) % 7 }}")


@pytest.mark.slow
@pytest.mark.parametrize("name", LATER)
def test_a_template_that_computes_too_much_fails_its_conversation(name: str) -> None:
    template = Template(LATER[name])
    with pytest.raises(
        ParamsError, match=r"within (1 s|512 MB)|it failed with (MemoryError|RecursionError|OverflowError)"
    ):
        template.render(**GIVEN)
    assert Template("{{ messages[0].role }}").render(**GIVEN) == "user"


@pytest.mark.parametrize(
    "source",
    ["{{ ''.__class__.__mro__ }}", "{{ messages.__init__.__globals__ }}", "{{ cycler.__init__.__globals__.os }}"],
)
def test_a_template_reaches_nothing_of_python(source: str) -> None:
    template = Template(source)
    with pytest.raises(ParamsError, match="it failed with SecurityError"):
        template.render(**GIVEN)


def test_what_is_no_json_is_refused_by_name() -> None:
    with pytest.raises(ParamsError, match=r"^messages and tools must be JSON values, got object <object"):
        Template("{{ messages }}").render(messages=[{"role": "user", "content": object()}])
