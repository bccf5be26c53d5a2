"""JSON for a pydantic class

The schema of the class holds every token, so the answer always validates. `close_grammar` ends it within
`max_tokens`.
"""

from typing import Literal

from pydantic import BaseModel, Field

import tirage


class Animal(BaseModel):
    name: str = Field(max_length=10, pattern="^[A-Z][a-z]+$")
    kind: Literal["dog", "cat", "fox"]
    age: int = Field(ge=0, le=20)
    friends: list[Literal["bird", "frog"]] = Field(max_length=2)


llm = tirage.LLM("tiny")
guided = tirage.GuidedDecodingParams(json=Animal.model_json_schema(), disable_any_whitespace=True)
params = tirage.SamplingParams(seed=3, max_tokens=60, guided_decoding=guided, close_grammar=True)
[answer] = llm.generate("The animal in the story: ", params)
print(answer.text)
print(repr(Animal.model_validate_json(answer.text)))
