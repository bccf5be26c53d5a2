"""Rows that are drawn as sets, each in one thread block: their steps, and the readings that these need.

`words` is what is known of a row. `steps` runs a step, once `reads` says that what it needs is known, by a search
(`searches`, whose places in the order of a cut are those of `places`), by ranks (`ordered`) or by curvature
(`curvature`, `buckets`, `heads`). A search looks between two tokens that the row's histogram tells (`brackets`), and
one reading lists what lies there (`listing`). A set is a list of ids, or a range in the order of rank (`ranges`).
"""
