"""Rows of requests that stay on a CUDA device: a step edits, draws, reports and advances there and reads nothing back.

`row_form` and `past_form` say on the host what a request asks, as arrays; `rows` holds the tables of a batch and makes
its steps, which are the operators of `ops`. On CUDA `launches` runs them as kernels; on the CPU `edits` changes logits,
`past` and `counts` follow the tokens, and `report` tells logprobs.
"""
