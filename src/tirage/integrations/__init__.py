"""Drawing inside other engines: each module is what one engine loads, over the rows of `rows.py`.

The engine runs the model, batches, stops and detokenises; tirage draws. Nothing here imports an engine until its own
module is imported.
"""
