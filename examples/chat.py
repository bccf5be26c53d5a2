"""A chat

The model's own template makes one text of the messages, and the answer ends where the model ends its turn.
`chat_stream` gives it piece by piece.
"""

import tirage

llm = tirage.LLM("tiny")
messages = []
for question in ("Hello! Who are you?", "Tell me a story about a dog."):
    messages.append({"role": "user", "content": question})
    answer = llm.chat(messages, tirage.SamplingParams(temperature=0.5, seed=7, max_tokens=40))
    messages.append({"role": "assistant", "content": answer.text})
    print(">", question)
    print(answer.text, f"({answer.finish_reason}, {answer.usage.total_tokens} tokens)")
