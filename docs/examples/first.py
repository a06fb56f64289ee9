"""Generate with a small model that drafts for a larger one."""

from specdec_core import Decoder, load_model

target = load_model("builtin:target")  # a folder, or a model of the hub
drafter = {"name": "transformer", "model": "builtin:drafter"}
decoder = Decoder(target, drafter, gamma=4, temperature=0)

result = decoder.generate("import os\n\ndef read", max_new_tokens=64)
print(result.text)
print(f"{result.metrics.tokens} tokens in {result.metrics.target_calls} target forward passes")
