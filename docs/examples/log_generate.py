"""Log what transformers generates: prompts, tokens, and the log-probability that each token was drawn with."""

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specdec_core.models import model_folder

folder = model_folder("builtin:target")  # or a name on the hub
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(folder)
sampling = {"do_sample": True, "temperature": 0.8, "top_p": 0.95, "top_k": 0}  # without top_k: 0, it is 50
torch.manual_seed(0)

with Path("log.jsonl").open("w", encoding="utf-8") as log:
    for prompt in ["def main():", "import os", "class Table:", "for name in"]:
        ids = tokenizer(prompt, return_tensors="pt")
        result = model.generate(
            **ids,
            **sampling,
            max_new_tokens=32,
            num_return_sequences=4,
            pad_token_id=tokenizer.eos_token_id,
            return_dict_in_generate=True,
            output_scores=True,  # after the sampling settings, so that their softmax is p
        )
        logprobs = model.compute_transition_scores(result.sequences, result.scores, normalize_logits=True)
        for tokens, row in zip(
            result.sequences[:, ids["input_ids"].shape[1] :].tolist(), logprobs.tolist(), strict=True
        ):
            ended = tokenizer.eos_token_id in tokens
            length = tokens.index(tokenizer.eos_token_id) + 1 if ended else len(tokens)
            line = {
                "prompt": ids["input_ids"][0].tolist(),
                "tokens": tokens[:length],
                "logprobs": row[:length],
                "finish_reason": "stop" if ended else "length",
            }
            log.write(json.dumps(line) + "\n")
