"""Rows of requests that stay on a CUDA device: a step edits, draws, reports and advances there and reads nothing back.

`row_form` and `past_form` say on the host what a request asks, as arrays; `rows` holds the tables of a batch and makes
its steps; `edits` changes logits, `past` follows the newest tokens, and `report` tells logprobs.
"""
