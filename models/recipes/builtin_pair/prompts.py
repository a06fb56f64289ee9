"""Choose the 48 built-in prompts from the held-out modules.

A prompt is a range of lines of one module. It ends within a docstring, a function body, or prose. Trailing white
space is removed, because the tokenizer joins a line break with the indentation after it.

Run from the repository root: `python -m recipes.builtin_pair.prompts`
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from recipes.builtin_pair.architectures import BUILTIN
from recipes.builtin_pair.corpus import WORK, Document, read_documents

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNT = 48
SHORTEST, LONGEST = 60, 200  # tokens
KINDS = ("docstring", "body", "prose")


@dataclass(frozen=True)
class Prompt:
    """A prompt; `line` is its first line in the module."""

    kind: str
    text: str
    source: str
    line: int


def kind_of_end(lines: list[str], end: int) -> str | None:
    """Return what a prompt that ends with line `end` ends in, or None if that is not a good end."""
    line, before = lines[end].strip(), lines[end - 1].strip()
    opened = line.startswith('"""') and line.count('"""') == 1 and len(line) > 20
    if opened and before.endswith(":"):
        return "docstring"
    inside = lines[end].startswith("        ") and lines[end + 1].startswith("        ")
    if inside and line.endswith(("):", "]:", ")", "]")) and not line.startswith(("#", "'", '"')):
        return "body"
    words = line.replace(",", "").replace("'", "").split()
    plain = len(words) >= 8 and all(word.rstrip(".").isalpha() for word in words)
    if plain and not line.endswith(".") and len(lines[end + 1].split()) >= 4:
        return "prose"
    return None


def candidates(document: Document, tokenizer: PreTrainedTokenizerFast) -> Iterator[Prompt]:
    """Yield every prompt of allowed length that starts after a blank line."""
    lines = document.text.splitlines()
    starts = [
        number
        for number, line in enumerate(lines)
        if number == 0 or (line.strip() and not lines[number - 1].strip())
    ]
    for end in range(4, len(lines) - 1):
        kind = kind_of_end(lines, end)
        begins = [start for start in starts if 3 <= end - start <= 24]
        for start in reversed(begins) if kind else ():
            text = "\n".join(lines[start : end + 1]).rstrip()
            if SHORTEST <= len(tokenizer.encode(text)) <= LONGEST:
                yield Prompt(kind, text, document.source, start + 1)
                break


def choose(documents: list[Document], tokenizer: PreTrainedTokenizerFast) -> list[Prompt]:
    """Cycle through the modules and kinds of end, and choose prompts that do not overlap."""
    shuffle = random.Random(0)
    pools = {document.source: list(candidates(document, tokenizer)) for document in documents}
    for pool in pools.values():
        shuffle.shuffle(pool)
    chosen: list[Prompt] = []
    turn = 0
    while len(chosen) < COUNT and any(pools.values()):
        for source, pool in pools.items():
            wanted = KINDS[turn % len(KINDS)]
            turn += 1
            pool.sort(key=lambda prompt: prompt.kind == wanted)  # stable; the wanted kind last
            near = [prompt.line for prompt in chosen if prompt.source == source]
            while pool:
                prompt = pool.pop()
                if all(abs(prompt.line - line) > 25 for line in near):
                    chosen.append(prompt)
                    break
            if len(chosen) == COUNT:
                break
    return chosen


def main() -> None:
    """Write heldout.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=WORK, help="folder with corpus and tokenizer")
    parser.add_argument("--out", type=Path, default=BUILTIN / "heldout.jsonl")
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.work / "tokenizer")
    prompts = choose(read_documents(arguments.work / "held_out.jsonl"), tokenizer)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("w", encoding="utf-8") as file:
        for number, prompt in enumerate(prompts):
            name = prompt.source.removesuffix(".py").replace("/", ".")
            record = {
                "id": f"{number:02d}-{name}-{prompt.kind}",
                "prompt": prompt.text,
                "source": f"{prompt.source}:{prompt.line}",
            }
            file.write(json.dumps(record) + "\n")
    lengths = [len(tokenizer.encode(prompt.text)) for prompt in prompts]
    kinds = {kind: sum(prompt.kind == kind for prompt in prompts) for kind in KINDS}
    print(f"{len(prompts)} prompts, {min(lengths)} to {max(lengths)} tokens, {kinds}")


if __name__ == "__main__":
    main()
