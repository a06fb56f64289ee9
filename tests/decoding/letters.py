"""A vocabulary of three letters, and its tokenizer."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specdec_core.models import wrap_model
from tests.tiny import tiny_model

EOS, A, B, C, AB = 1, 2, 3, 4, 5
SPELLING = {0: "<pad>", EOS: "<eos>", A: "a", B: "b", C: "c", AB: "ab"}
VOCAB = len(SPELLING)
PROMPT = (2, 3, 5, 2, 3)


def tiny_tokenizer():
    bpe = Tokenizer(models.BPE(vocab={text: token for token, text in SPELLING.items()}, merges=[("a", "b")]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens(["<pad>", "<eos>"])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<eos>", pad_token="<pad>")


PLAIN = (
    "{% for one in messages %}{{ 'c' if one.role == 'system' else 'ba' if one.role == 'user' else 'ca' }}"
    "{{ one.content }}{{ '<eos>' if one.role == 'assistant' else '' }}{% endfor %}ca"
)
SEEDS = {"gpt2": 4, "llama": 2, "qwen3": 4, "mistral": 1, "gemma3": 8}
"""Weights whose answers are many different letters."""


def wrapped(family="qwen3", template=PLAIN):
    """A tiny model over letters with a chat template. Two tokens, a and b, are read again as one."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return wrap_model(tiny_model(family, VOCAB, SEEDS[family]), tokenizer)


def library_answers(target, said, max_new_tokens, system=None):
    """Return the greedy answers of the model's own `generate`, turn by turn, and the prompts that it read."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    answers, prompts = [], []
    for text in said:
        messages.append({"role": "user", "content": text})
        given = target.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")
        ids = given["input_ids"]
        out = target.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, do_sample=False
        )
        answers.append(out[0, ids.shape[1] :].tolist())
        prompts.append(ids[0].tolist())
        messages.append(
            {"role": "assistant", "content": target.tokenizer.decode(answers[-1], skip_special_tokens=True)}
        )
    return answers, prompts
