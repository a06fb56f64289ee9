"""Five lines with a model of the hub. The tests run them with a small random model of the same class."""

# --8<-- [start:lines]
from specdec_core import Decoder, load_model

target = load_model("Qwen/Qwen3.5-4B")
drafter = {"name": "mtp", "model": "target"}
decoder = Decoder(target, drafter, gamma=3, temperature=0)
result = decoder.generate("The capital of France is", max_new_tokens=64)
print(result.text, result.metrics)
# --8<-- [end:lines]
