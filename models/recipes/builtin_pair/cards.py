"""Write the model cards from RESULTS.json and provenance.json.

Run from the repository root: `python -m recipes.builtin_pair.cards`
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from recipes.builtin_pair.architectures import BUILTIN, FOLDERS, TRAINED_LENGTH
from recipes.builtin_pair.vocabulary import MAX_POSITIONS, VOCABULARY_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Card: TypeAlias = Callable[[str, dict[str, Any], dict[str, Any]], str]

# ruff: noqa: E501 (rows of a Markdown table cannot be broken)
CARD = """\
---
license: psf-2.0
library_name: transformers
pipeline_tag: text-generation
---

# specdec built-in {role}

{purpose}

It continues Python source code. It is a test model for speculative decoding, not a programming tool: its
output looks like Python and means little.

| | |
|---|---|
| architecture | {architecture} |
| parameters | {parameters:,} |
| stored as | float16 safetensors |
| tokenizer | byte-level BPE, {vocabulary} tokens, the same in both folders; `<|endoftext|>` begins and ends a document |
| trained length | {length} tokens; positions up to {positions} are accepted, but the model is untrained beyond {length} |
| training | {tokens:.1f} million tokens in {minutes:.0f} minutes on two shared CPU cores ({steps} steps), {start} |
| held-out perplexity | {perplexity:.2f} per token, {bits:.3f} bits per byte |

## Data and licence

The standard library of CPython {python} without its tests, and the help topics of `pydoc_data`:
{documents} documents, {megabytes:.1f} MB. {held} whole modules ({held_megabytes:.2f} MB) were held out; the
built-in prompts and all measurements come from those. The text and the weights are licensed under the Python
Software Foundation licence version 2 (PSF-2.0).

## The pair

Acceptance rate on the target's own continuations of the {prompts} held-out prompts, {new} tokens each:

| sampling | acceptance rate (alpha) | standard error over prompts |
|---|---|---|
| temperature 1: mean of sum min(p, q) | {alpha:.3f} | {alpha_error:.3f} |
| greedy: share of positions where both argmax tokens agree | {greedy:.3f} | {greedy_error:.3f} |

Alpha is that of Corollary 3.6 of [arXiv 2211.17192](https://arxiv.org/abs/2211.17192). The drafter has
{ratio:.1f} % of the target's parameters.

## Limits

- The corpus is small and each text was seen more than once. Both models are better on it than on the held-out
  modules.
- The acceptance rate applies to text like the corpus. It is lower for natural language and other programming
  languages.
- With greedy decoding, a model this small repeats itself, which is easy to draft.

## Made by

`models/recipes/builtin_pair` in the specdec repository, with every command.
"""

STARTS = {"target": "from scratch", "drafter": "from the first and the last layer of the target"}
PURPOSES = {
    "target": "The larger model of the built-in pair. Speculative decoding preserves its distribution.",
    "drafter": "The smaller model of the built-in pair, distilled from the built-in target. It proposes draft tokens,\n"
    "which the target verifies.",
}


def architecture(folder: Path) -> str:
    """Return the architecture of a model folder in words."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    layers, width, heads = (
        config.get(name, config.get(other))
        for name, other in (
            ("n_layer", "num_hidden_layers"),
            ("n_embd", "hidden_size"),
            ("n_head", "num_attention_heads"),
        )
    )
    return f"`{config['architectures'][0]}`: {layers} layer(s), width {width}, {heads} heads, tied embeddings"


def card(role: str, results: dict[str, Any], provenance: dict[str, Any]) -> str:
    """Return the text of one card."""
    own = results[role]
    sampled, greedy = results["alpha_temperature_1"], results["alpha_greedy"]
    return CARD.format(
        role=role,
        purpose=PURPOSES[role],
        architecture=architecture(FOLDERS[role]),
        parameters=own["parameters"],
        vocabulary=VOCABULARY_SIZE,
        length=TRAINED_LENGTH,
        positions=MAX_POSITIONS,
        tokens=own["training_tokens"] / 1e6,
        minutes=own["training_minutes"],
        steps=own["training_steps"],
        start=STARTS[role],
        perplexity=own["held_out_perplexity"],
        bits=own["bits_per_byte"],
        python=provenance["python"],
        documents=provenance["train"]["documents"],
        megabytes=provenance["train"]["bytes"] / 1e6,
        held=provenance["held_out"]["documents"],
        held_megabytes=provenance["held_out"]["bytes"] / 1e6,
        prompts=results["prompts"],
        new=results["new_tokens_per_prompt"],
        alpha=sampled["alpha"],
        alpha_error=sampled["standard_error"],
        greedy=greedy["alpha"],
        greedy_error=greedy["standard_error"],
        ratio=100 * results["drafter"]["parameters"] / results["target"]["parameters"],
    )


def write_cards(recipe: Path, folders: Mapping[str, Path], card_of: Card) -> None:
    """Parse the command line and write README.md into the model folders.

    Args:
        recipe: folder with RESULTS.json and provenance.json.
        folders: the shipped folder of each role.
        card_of: returns a card from the role, the results and the provenance.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=recipe / "RESULTS.json", help="the measurements")
    parser.add_argument("--models", type=Path, default=BUILTIN, help="parent of the model folders")
    arguments = parser.parse_args()
    results = json.loads(arguments.results.read_text(encoding="utf-8"))
    provenance = json.loads((recipe / "provenance.json").read_text(encoding="utf-8"))
    for role, folder in folders.items():
        path = arguments.models / folder.name / "README.md"
        path.write_text(card_of(role, results, provenance), encoding="utf-8")
        print(f"card of the {role} written")


def main() -> None:
    """Write the cards of the pair."""
    write_cards(Path(__file__).parent, FOLDERS, card)


if __name__ == "__main__":
    main()
