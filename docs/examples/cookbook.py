"""The Python of the cookbook. The tests run it with small random models in the place of those of the hub."""

# --8<-- [start:generate]
from transformers import AutoModelForCausalLM, AutoTokenizer

from specdec_core import generate_with

name = "meta-llama/Llama-3.1-8B-Instruct"
model, tokenizer = AutoModelForCausalLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)
drafted = generate_with(drafter={"name": "transformer", "model": "meta-llama/Llama-3.2-1B-Instruct"}, gamma=4)

inputs = tokenizer("The capital of France is", return_tensors="pt").to(model.device)
output = model.generate(**inputs, max_new_tokens=32, do_sample=False, custom_generate=drafted)
print(tokenizer.decode(output[0]), drafted.metrics)
# --8<-- [end:generate]
