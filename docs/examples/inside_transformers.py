"""The decoding loop behind transformers' own `generate`: see docs/transformers.md."""

# --8<-- [start:generate]
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from specdec_core import generate_with
from specdec_core.models import model_folder

folder = model_folder("builtin:target")  # any model of transformers
model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
drafted = generate_with(drafter={"name": "transformer", "model": "builtin:drafter"}, gamma=4)

tokenizer.pad_token, tokenizer.padding_side = tokenizer.eos_token, "left"
inputs = tokenizer(["import os\nimport", "def __init__(self, name):"], padding=True, return_tensors="pt")
settings = {"max_new_tokens": 24, "do_sample": False, "return_dict_in_generate": True}
output = model.generate(**inputs, custom_generate=drafted, **settings)
print(output.metrics.tokens, "tokens in", output.metrics.target_calls, "forward passes")
assert output.sequences.equal(model.generate(**inputs, **settings).sequences)
# --8<-- [end:generate]

# --8<-- [start:pipeline]
writer = pipeline("text-generation", model=model, tokenizer=tokenizer)
prompt = "for key, value in data"
print(writer(prompt, custom_generate=drafted, max_new_tokens=8, do_sample=False)[0]["generated_text"])
# --8<-- [end:pipeline]
