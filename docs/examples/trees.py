"""Draft token trees: an example of the page on trees."""

# --8<-- [start:trees]
from specdec_core import Decoder, TraceObserver, load_model

target = load_model("builtin:target")
drafter = {"name": "transformer", "model": "builtin:drafter"}
decoder = Decoder(target, drafter, gamma={"name": "tree", "widths": [3, 2, 1]}, temperature=0)
trace = TraceObserver()
result = decoder.generate("import os\n", max_new_tokens=32, observers=[trace])
print(result.metrics)
print(trace.reports[0].outcome.parents)
# --8<-- [end:trees]
