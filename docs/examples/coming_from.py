"""Assisted generation and prompt lookup of transformers, with specdec."""

# --8<-- [start:assisted]
from specdec_core import Decoder, load_model

target = load_model("builtin:target")  # wrap_model(model, tokenizer) takes a model that is in memory
prompts = ["import os\n", "def main():"]  # a batch; prompts may differ in length

drafter = {"name": "transformer", "model": "builtin:drafter"}
assisted = Decoder(target, drafter, gamma=5, temperature=0)
print(assisted.generate(prompts, max_new_tokens=32)[0].text)
# --8<-- [end:assisted]

copying = {"name": "prompt-copy", "max_match": 2}
lookup = Decoder(target, copying, gamma=10, temperature=0)
print(lookup.generate(prompts, max_new_tokens=32)[0].text)
