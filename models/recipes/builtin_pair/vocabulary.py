"""Train the byte-level BPE tokenizer that both models share, and encode the corpus with it.

Run from the repository root: `python -m recipes.builtin_pair.vocabulary`
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from recipes.builtin_pair.corpus import WORK, Document, read_documents

VOCABULARY_SIZE = 4096
END_OF_TEXT = "<|endoftext|>"
MAX_POSITIONS = 2048

# A line break, the blank lines and the indentation after it are one piece, so that "\n        " is one token. A
# word includes one sign or space before it (".append", "(self"), numbers are split into groups of three digits,
# and the last of several spaces belongs to the sign after it.
PIECES = (
    r"[ \t]*\n\s*"
    r"|[^\s\p{L}\p{N}]?\p{L}+"
    r"| \p{L}+"
    r"| ?\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+"
    r"|[^\S\n]+(?!\S)"
    r"|\s+"
)


def train_tokenizer(documents: list[Document]) -> PreTrainedTokenizerFast:
    """Train the tokenizer on the training documents."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((document.text for document in documents), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_POSITIONS,
    )


def encode(tokenizer: PreTrainedTokenizerFast, documents: list[Document]) -> np.ndarray:
    """Return all documents as one stream. The end-of-text token starts each document and ends the last."""
    stream: list[int] = []
    for document in documents:
        ids = tokenizer.encode(document.text)
        if tokenizer.decode(ids) != document.text:
            raise ValueError(f"the tokenizer does not round-trip {document.source}")
        stream += [tokenizer.eos_token_id, *ids]
    stream.append(tokenizer.eos_token_id)
    return np.array(stream, dtype=np.uint16)


def main() -> None:
    """Write the tokenizer and the encoded streams to --work."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=WORK, help="folder with the corpus files")
    work = parser.parse_args().work

    train = read_documents(work / "train.jsonl")
    held_out = read_documents(work / "held_out.jsonl")
    tokenizer = train_tokenizer(train)
    tokenizer.save_pretrained(work / "tokenizer")
    for name, documents in (("train", train), ("held_out", held_out)):
        stream = encode(tokenizer, documents)
        np.save(work / f"{name}.npy", stream)
        size = sum(len(document.text.encode()) for document in documents)
        print(f"{name}: {len(stream)} tokens, {size / len(stream):.2f} bytes per token", flush=True)


if __name__ == "__main__":
    main()
