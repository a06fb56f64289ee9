"""Beam search from Python: see docs/beams.md."""

from specdec_core import Decoder, load_model

target = load_model("builtin:t5-target")
drafter = {"name": "transformer", "model": "builtin:t5-drafter"}
decoder = Decoder(target, drafter, gamma=3, draft_beams=8, temperature=0)
result = decoder.generate(
    "translate English to German: The file could not be opened.", beams=4, num_return_sequences=2
)
for one in result:
    print(f"{one.score:.3f} {one.text}")
print(result.metrics.target_calls, "passes for", result.metrics.tokens, "steps of beam search")
