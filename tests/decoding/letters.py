"""A vocabulary of three letters, and its tokenizer."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

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
