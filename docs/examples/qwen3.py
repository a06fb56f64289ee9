"""Five lines with models of the hub. The tests run them with small random models of the same classes."""

# --8<-- [start:lines]
from specdec_core import Decoder, load_model

target = load_model("Qwen/Qwen3-8B")
drafter = {"name": "transformer", "model": "Qwen/Qwen3-0.6B"}
decoder = Decoder(target, drafter, gamma=4, temperature=0)
result = decoder.generate("The capital of France is", max_new_tokens=64)
print(result.text, result.metrics)
# --8<-- [end:lines]
