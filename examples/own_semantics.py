"""An order of stages of your own

What parameters mean is data. Here min-p comes before temperature, so a high temperature never brings unlikely tokens
back.
"""

import numpy as np

import tirage

canonical = tirage.Semantics()
filters_first = canonical.replace(
    name="min-p-first",
    stages=("repetition", "min_p", "temperature"),
)
logits = np.log(np.array([0.6, 0.25, 0.1, 0.05], np.float32))
for semantics in (canonical, filters_first):
    params = tirage.SamplingParams(temperature=2.0, min_p=0.3, semantics=semantics)
    print(f"{semantics.name:12}", tirage.law(logits, params)[0].round(3))
