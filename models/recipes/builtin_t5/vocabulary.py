"""Train the Unigram tokenizer that both models share, and encode the pairs with it.

It works like T5's SentencePiece model: spaces become `▁`, words are split into their most probable pieces
(Unigram), and characters without a piece are split into bytes, so that no text has unknown tokens.

Run from the repository root: `python -m recipes.builtin_t5.vocabulary`

References:
    Kudo 2018, "Subword Regularization" (Unigram); Kudo and Richardson 2018 (SentencePiece).
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

if TYPE_CHECKING:
    from collections.abc import Iterable

WORK = Path(__file__).parent / ".work"
VOCABULARY_SIZE = 8192
SPECIAL = ("<pad>", "</s>", "<unk>")  # ids 0, 1 and 2, as in T5
PAD_ID, END_ID, UNKNOWN_ID = range(3)
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
MAX_SOURCE, MAX_TARGET = 512, 128  # tokens; longer pairs are left out
SPLITS = ("train", "valid", "test")
# Score of the byte pieces, so that only the fallback uses them and not a text that spells one.
NEVER = -1000.0


@dataclass(frozen=True)
class Pair:
    """A line of `pairs.jsonl`: task, prompt, reference and split."""

    task: str
    prompt: str
    reference: str
    split: str


def read_pairs(path: Path) -> list[Pair]:
    """Read pairs from a JSON Lines file."""
    with path.open(encoding="utf-8") as lines:
        entries = [json.loads(line) for line in lines]
    return [Pair(entry["task"], entry["prompt"], entry["reference"], entry["split"]) for entry in entries]


def without_rare(texts: Iterable[str], min_count: int) -> list[str]:
    """Return the texts without the characters that occur less than `min_count` times in total.

    The trainer gives every character a separate piece. Rare ones would take the place of words, and bytes
    represent them anyway.
    """
    texts = list(texts)
    counts = Counter(character for text in texts for character in text)
    rare = dict.fromkeys((ord(character) for character, count in counts.items() if count < min_count), None)
    return [text.translate(rare) for text in texts]


def train_unigram(texts: list[str], size: int) -> models.Unigram:
    """Return a Unigram model with `size` pieces, including the special ones and all bytes."""
    learner = Tokenizer(models.Unigram())
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=size - len(SPECIAL) - len(BYTES) + 1,
        special_tokens=[SPECIAL[UNKNOWN_ID]],
        unk_token=SPECIAL[UNKNOWN_ID],
        max_piece_length=16,
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    learnt = json.loads(learner.to_str())["model"]["vocab"]
    pieces = [(piece, score) for piece, score in learnt if piece not in SPECIAL]
    vocabulary = [(piece, 0.0) for piece in SPECIAL] + [(piece, NEVER) for piece in BYTES] + pieces
    return models.Unigram(vocabulary, unk_id=UNKNOWN_ID, byte_fallback=True)


def train_tokenizer(
    texts: Iterable[str], size: int = VOCABULARY_SIZE, min_count: int = 10
) -> PreTrainedTokenizerFast:
    """Train the tokenizer on texts; see `without_rare` for `min_count`."""
    tokenizer = Tokenizer(train_unigram(without_rare(texts, min_count), size))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer.add_special_tokens(list(SPECIAL))
    end = SPECIAL[END_ID]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, END_ID)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=SPECIAL[PAD_ID],
        eos_token=end,
        unk_token=SPECIAL[UNKNOWN_ID],
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_SOURCE,
        model_input_names=["input_ids", "attention_mask"],
    )


def check_round_trip(tokenizer: PreTrainedTokenizerFast, pairs: list[Pair]) -> None:
    """Raise ValueError at the first text that does not decode to itself."""
    for pair in pairs:
        for text in (pair.prompt, pair.reference):
            ids = tokenizer.encode(text)
            if tokenizer.decode(ids, skip_special_tokens=True) != text or UNKNOWN_ID in ids:
                raise ValueError(f"the tokenizer does not round-trip {text!r}")


def encode(tokenizer: PreTrainedTokenizerFast, pairs: list[Pair]) -> dict[str, np.ndarray]:
    """Return the pairs as arrays.

    Returns:
        `sources` and `targets`, concatenated ids (uint16); `source_starts` and `target_starts`, [N + 1];
        `summaries`, [N] bool; `left_out`, the number of pairs that were too long.
    """
    sources = tokenizer([pair.prompt for pair in pairs], verbose=False)["input_ids"]
    targets = tokenizer([pair.reference for pair in pairs], verbose=False)["input_ids"]
    both = zip(sources, targets, strict=True)
    kept = [len(source) <= MAX_SOURCE and len(target) <= MAX_TARGET for source, target in both]
    arrays: dict[str, np.ndarray] = {"left_out": np.array(kept.count(False))}
    for name, rows in (("source", sources), ("target", targets)):
        rows = [row for row, keep in zip(rows, kept, strict=True) if keep]
        arrays[f"{name}s"] = np.array([token for row in rows for token in row], dtype=np.uint16)
        arrays[f"{name}_starts"] = np.cumsum([0, *map(len, rows)])
    tasks = [pair.task == "summarize" for pair, keep in zip(pairs, kept, strict=True) if keep]
    arrays["summaries"] = np.array(tasks, dtype=bool)
    return arrays


def main() -> None:
    """Write the tokenizer and the encoded splits to --work."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=WORK, help="folder with pairs.jsonl")
    parser.add_argument("--pairs", type=Path, help="default: pairs.jsonl in --work")
    parser.add_argument("--tokenizer", type=Path, help="folder of a tokenizer to use, rather than to train one")
    arguments = parser.parse_args()
    pairs = read_pairs(arguments.pairs or arguments.work / "pairs.jsonl")
    of_split = {split: [pair for pair in pairs if pair.split == split] for split in SPLITS}
    texts = [text for pair in of_split["train"] for text in (pair.prompt, pair.reference)]
    if arguments.tokenizer is None:
        tokenizer = train_tokenizer(texts)
    else:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(arguments.tokenizer)
    check_round_trip(tokenizer, pairs)
    tokenizer.save_pretrained(arguments.work / "tokenizer")
    for split, some in of_split.items():
        arrays = encode(tokenizer, some)
        np.savez(arguments.work / f"{split}.npz", **arrays)
        size = sum(len((pair.prompt + pair.reference).encode()) for pair in some)
        tokens = len(arrays["sources"]) + len(arrays["targets"])
        print(
            f"{split}: {len(arrays['summaries'])} pairs ({int(arrays['summaries'].sum())} summaries), "
            f"{arrays['left_out']} too long; {len(arrays['sources'])} and {len(arrays['targets'])} tokens, "
            f"{size / tokens:.2f} bytes per token",
            flush=True,
        )


if __name__ == "__main__":
    main()
