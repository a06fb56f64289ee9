"""What assisted generation and prompt lookup of transformers are here."""

# --8<-- [start:assisted]
from specdec_core import Decoder, GenerationSettings, SamplingSettings, load_model
from specdec_drafters.configs import PromptCopyConfig, TransformerConfig
from specdec_drafters.prompt_copy import PromptCopyDrafter
from specdec_drafters.transformer import TransformerDrafter
from specdec_plugins.configs import FixedGammaConfig
from specdec_plugins.fixed_gamma import FixedGamma

target = load_model("builtin:target")  # wrap_model(model, tokenizer) takes one that is in memory
argmax = SamplingSettings(temperature=0)
length = GenerationSettings(max_new_tokens=32)
prompts = ["import os\n", "def main():"]  # a batch: rows may differ in length

drafter = TransformerDrafter(TransformerConfig(model="builtin:drafter"), target.info())
assisted = Decoder(target, drafter, gamma=FixedGamma(FixedGammaConfig(gamma=5)), sampling=argmax)
print(assisted.generate(prompts, length).rows[0].text)
# --8<-- [end:assisted]

# --8<-- [start:lookup]
copying = PromptCopyDrafter(PromptCopyConfig(min_match=1, max_match=2), target.info())
lookup = Decoder(target, copying, gamma=FixedGamma(FixedGammaConfig(gamma=10)), sampling=argmax)
print(lookup.generate(prompts, length).rows[0].text)
# --8<-- [end:lookup]
