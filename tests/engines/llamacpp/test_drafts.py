"""Drafts over GGUF models: the same tokens as without, read for all rows in one batch."""

from __future__ import annotations

import numpy as np
import pytest
from gguf_models import STARTS, STORIES, greedy, stories

from tirage import LLM, SamplingParams
from tirage.models import Inputs
from tirage.models.gguf import GGUFModel

pytestmark = pytest.mark.skipif(not STORIES.exists(), reason="needs shared/models/stories260K and its GGUF file")


def test_drafts_change_no_token_of_a_gguf_model() -> None:
    params = [greedy(80), *(SamplingParams(seed=seed, temperature=0.6, max_tokens=80) for seed in range(3))]
    with LLM(stories()) as plain:
        expected = [each.token_ids for each in plain.generate(list(STARTS[:4]), params)]
    for options in ({"speculative_config": {"prompt_lookup_min": 1}}, {"draft": stories()}):
        with LLM(stories(), **options) as llm:
            assert [each.token_ids for each in llm.generate(list(STARTS[:4]), params)] == expected
            # Few, as each draft begins with a token or two; that there are some shows that drafts were read.
            assert llm.engine.progress().accepted_tokens > 10


def test_a_batch_of_drafts_gives_the_logits_of_single_tokens() -> None:
    model = GGUFModel(stories())
    prompts, drafts = ((5, 9, 300), (7, 8)), ([11, 12, 13], [20])
    rows = []
    for prompt in prompts:
        row = model.open(Inputs(token_ids=prompt))
        model.prefill_chunk(row)
        rows.append(row)
    alone = []
    for prompt, draft in zip(prompts, drafts, strict=True):
        row = model.open(Inputs(token_ids=prompt))
        model.prefill_chunk(row)
        alone += [model.decode([token], [row])[0] for token in draft]
    found = model.extend_rows(drafts, rows)
    np.testing.assert_allclose(found, alone, atol=1e-4 * np.abs(alone).max())
    model.truncate_row(rows[0], 2)
    model.truncate_row(rows[1], 1)
    again = model.decode([12, 20], rows)
    np.testing.assert_allclose(again, [alone[1], alone[3]], atol=1e-4 * np.abs(alone).max())
