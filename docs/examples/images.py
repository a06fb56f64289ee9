"""A prompt with an image. The tests run it with a small random model of the same class."""

# --8<-- [start:image]
from transformers import AutoModelForImageTextToText, AutoProcessor

from specdec_core import generate_with

name = "Qwen/Qwen3-VL-2B-Instruct"
model, processor = AutoModelForImageTextToText.from_pretrained(name), AutoProcessor.from_pretrained(name)
content = [{"type": "image", "path": "receipt.png"}, {"type": "text", "text": "Copy this receipt as a table."}]
settings = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}
inputs = processor.apply_chat_template([{"role": "user", "content": content}], **settings)
drafted = generate_with(drafter="prompt-copy", gamma=4)
ids = model.generate(**inputs, custom_generate=drafted, max_new_tokens=64, do_sample=False)
print(processor.decode(ids[0], skip_special_tokens=True))
# --8<-- [end:image]
