"""The training corpus, written by the machine itself from a seed; nothing is downloaded or copied."""

import argparse
import random
from collections.abc import Iterator

import objects
from prose import description, statement
from stories import story
from talks import chat, echo, quiz

USER, ASSISTANT, SYSTEM, END = "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"


def chat_text(system: str | None, turns: list[tuple[str, str]]) -> str:
    """The chat as the model reads it; the same layout as the chat template in `tokenizer_config.json`."""
    head = f"{SYSTEM}{system}{END}" if system else ""
    return head + "".join(f"{USER}{ask}{END}{ASSISTANT}{answer}{END}" for ask, answer in turns)


def document(rng: random.Random) -> str:
    """One text: words to repeat or a quiz (1 in 4), a story or a chat (3 in 10 each), else prose, facts or JSON."""
    drill = rng.random()
    if drill < 0.25:
        return chat_text(None, quiz(rng) if drill < 0.2 else [echo(rng) for _ in range(rng.randint(1, 3))])
    kind = rng.random()
    if kind < 0.38:
        return story(rng, short=rng.random() < 0.3)
    if kind < 0.78:
        return chat_text(*chat(rng))
    if kind < 0.90:
        return description(rng)
    return statement(rng) if kind < 0.94 else objects.document(rng)


def documents(seed: int) -> Iterator[str]:
    """An endless stream of texts, the same for the same seed."""
    rng = random.Random(seed)
    while True:
        yield document(rng)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print some of the corpus.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=10)
    options = parser.parse_args()
    for _, text in zip(range(options.count), documents(options.seed), strict=False):
        print(text, end="\n\n----\n\n")
