"""Make prompts that the target was not trained on, without references, to distil the drafter.

The target has memorized its training pairs, so that its outputs for them differ from those for new prompts, on
which the drafter will be used. New prompts for summaries are parts of the bodies of training pairs. Those for
translations are messages in the sources of libraries (`sentences`), sentences of bodies, first lines, and
concatenated training messages. None is close to a held-out prompt.

Run from the repository root: `python -m recipes.builtin_t5.fresh`
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from transformers import AutoTokenizer

from recipes.builtin_t5.cleaning import prose_key
from recipes.builtin_t5.data import close_to
from recipes.builtin_t5.libraries import LIBRARIES
from recipes.builtin_t5.samples import keep
from recipes.builtin_t5.sentences import messages_of
from recipes.builtin_t5.vocabulary import END_ID, MAX_SOURCE, WORK, Pair, read_pairs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SUMMARIZE, TRANSLATE = "summarize: ", "translate English to German: "
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_PARAGRAPH = re.compile(r"\n\s*\n")


def parts(body: str, min_words: int = 12) -> Iterator[str]:
    """Yield the paragraphs of a body with several, and the second half of its sentences, if long enough."""
    paragraphs = [part.strip() for part in _PARAGRAPH.split(body)]
    sentences = _SENTENCE.split(body)
    halves = [" ".join(sentences[len(sentences) // 2 :])] if len(sentences) > 1 else []
    for part in dict.fromkeys([*(paragraphs if len(paragraphs) > 1 else []), *halves]):
        if len(part.split()) >= min_words:
            yield part


def sentences_of(body: str, min_words: int = 5, max_words: int = 25) -> Iterator[str]:
    """Yield the sentences of a body with a suitable length, each on one line, without code."""
    for sentence in _SENTENCE.split(body):
        line = " ".join(sentence.split())
        if min_words <= len(line.split()) <= max_words and line.endswith(".") and ">>>" not in line:
            yield line


def library_messages(folder: Path) -> list[str]:
    """Return the messages of all libraries, each once; a library that cannot be downloaded is left out."""
    found: dict[str, None] = {}
    for library in LIBRARIES:
        try:
            mine = messages_of(library, folder)
        except OSError as error:
            print(f"warning: {library.package.name} is left out: {error!r}")
            continue
        found.update(dict.fromkeys(mine))
        print(f"{library.package.name}: {len(mine)} messages", flush=True)
    return list(found)


def apart(prompts: list[str], held_out: list[str]) -> list[str]:
    """Return the prompts that are not close to a held-out one."""
    keys = [prose_key(prompt) for prompt in prompts]
    barred = close_to(keys, [prose_key(prompt) for prompt in held_out])
    return [prompt for prompt, key in zip(prompts, keys, strict=True) if key not in barred]


def fresh_prompts(
    pairs: list[Pair], generator: np.random.Generator, more: Iterable[str] = ()
) -> dict[str, list[str]]:
    """Return new prompts by task, without duplicates and without prompts of the pairs.

    Args:
        pairs: The training pairs.
        generator: Source of randomness.
        more: English messages without translations.
    """
    bodies = [pair.prompt.removeprefix(SUMMARIZE) for pair in pairs if pair.task == "summarize"]
    lines = [pair.reference for pair in pairs if pair.task == "summarize"]
    messages = [pair.prompt.removeprefix(TRANSLATE) for pair in pairs if pair.task == "translate"]
    short = [message for message in messages if len(message.split()) <= 12]
    partners = generator.permutation(len(short))
    joined = [f"{first.rstrip('.')}. {short[second]}" for first, second in zip(short, partners, strict=True)]
    sentences = [line for body in bodies for line in sentences_of(body)]
    english = [*more, *sentences, *lines, *joined[: len(joined) // 4]]
    prompts_of = {
        "summarize": [SUMMARIZE + part for body in bodies for part in parts(body)],
        "translate": [TRANSLATE + line for line in english],
    }
    known = {pair.prompt for pair in pairs}
    return {
        task: [one for one in dict.fromkeys(prompts) if one not in known] for task, prompts in prompts_of.items()
    }


def main() -> None:
    """Write fresh.npz to --work."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=WORK, help="folder with pairs and tokenizer")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    pairs = read_pairs(arguments.work / "pairs.jsonl")
    train, held_out = ([pair for pair in pairs if (pair.split == "train") == wanted] for wanted in (True, False))
    messages = library_messages(arguments.work / "archives")
    made = fresh_prompts(train, np.random.default_rng(arguments.seed), messages)
    tokenizer = AutoTokenizer.from_pretrained(arguments.work / "tokenizer")
    sources, summaries = [], []
    for task, prompts in made.items():
        kept = apart(prompts, [pair.prompt for pair in held_out if pair.task == task])
        found = [ids for ids in tokenizer(kept)["input_ids"] if len(ids) <= MAX_SOURCE]
        sources += [np.array(ids, dtype=np.uint16) for ids in found]
        summaries += [task == "summarize"] * len(found)
        print(f"{task}: {len(found)} prompts", flush=True)
    nothing = [np.array([END_ID], dtype=np.uint16)] * len(sources)
    keep(arguments.work / "fresh.npz", sources, nothing, np.array(summaries))


if __name__ == "__main__":
    main()
