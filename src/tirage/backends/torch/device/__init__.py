"""Rows of requests that stay on a CUDA device: a step edits, draws, reports and advances there and reads nothing back.

`row_form`, `past_form` and `carry` say on the host what a request asks and carries, as arrays; `rows` holds the tables
of a batch and makes its steps, which are the operators of `ops`. On CUDA `launches` runs them as kernels; on the CPU
`edits` changes logits, `past`, `counts` and `carry` follow the tokens, and `report` tells logprobs.
"""
