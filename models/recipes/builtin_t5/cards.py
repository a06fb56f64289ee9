"""Write the model cards from RESULTS.json and provenance.json.

Run from the repository root: `python -m recipes.builtin_t5.cards`
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from recipes.builtin_pair.cards import write_cards
from recipes.builtin_t5.architectures import FOLDERS
from recipes.builtin_t5.vocabulary import MAX_SOURCE, MAX_TARGET, VOCABULARY_SIZE

# ruff: noqa: E501 (rows of a Markdown table cannot be broken)
CARD = """\
---
license: other
license_name: {licences}
library_name: transformers
pipeline_tag: translation
language: [en, de]
---

# specdec built-in T5 {role}

{purpose}

It translates short program messages from English to German, and writes the first line of a docstring from the
rest. Prompts start with `translate English to German: ` or `summarize: `. It is a test model for speculative
decoding, not a usable translator.

| | |
|---|---|
| architecture | `T5ForConditionalGeneration` in the shape of v1.1 (gated GELU, no dropout): {encoder} encoder and {decoder} decoder layers, width {width}, {heads} heads of {head_width}, feed-forward {feed_forward}, {head} |
| parameters | {parameters:,}{own} |
| stored as | float16 safetensors; loss on the two test sets in float32 {before} before rounding, {after} after |
| tokenizer | Unigram with byte fallback, {vocabulary} pieces, in the target's folder; pad 0, `</s>` 1 |
| trained lengths | up to {source} source tokens and {target} target tokens |
| training | {tokens:.1f} million source and target tokens in {minutes:.0f} minutes on two shared CPU cores ({steps} steps), {how} |

## Quality on the shipped test sets (greedy decoding)

| | loss per token | scores |
|---|---|---|
{scores}

BLEU and chrF are computed with sacrebleu, ROUGE is the mean F1 as defined by rouge-score, all from 0 to 100. The
test sets have {prompts}.

## The pair

Acceptance rate (alpha) of the drafter on the target's own outputs for the test prompts, with its standard error
over prompts:

| task | temperature 1: mean of sum min(p, q) | greedy: share of positions where both argmax tokens agree |
|---|---|---|
{alphas}

Alpha is that of Corollary 3.6 of [arXiv 2211.17192](https://arxiv.org/abs/2211.17192).

## Data and licences

The licences of all training texts permit distributing the weights: {licence_list}. The repository contains no
training message. It contains the test sets, which come only from programs under permissive licences.

| programs | licence | training pairs |
|---|---|---|
{programs}

The recipe reads messages and docstrings from published packages; `models/recipes/builtin_t5/provenance.json` lists their
versions and digests.

## Limits

- The corpus is small and uniform. The output for long sentences, and for any that are not program messages, is
  nonsense.
- Placeholders and names are often lost or changed. Do not use the translations.
- The test pairs are held out, but come from the same programs as the training pairs and share their style.

## Made by

`models/recipes/builtin_t5` in the specdec repository, with every command.
"""

PURPOSES = {
    "target": "The larger model of the built-in encoder-decoder pair. Speculative decoding preserves its distribution.",
    "drafter": "The smaller model of the built-in encoder-decoder pair, distilled from `t5-target`. It proposes draft "
    "tokens,\nwhich the target verifies. The folder holds its decoder layer. Encoder, embeddings, output embedding and "
    "tokenizer\nare the target's: specdec takes them from there (`modules_of_target` in `config.json`).",
}
HOW = {
    "target": "from scratch; cross-entropy",
    "drafter": "of the decoder only, in three runs from the target's weights; KL and total variation to the target's distribution",
}
HEADS = {False: "untied output embedding", True: "tied output embedding with T5's scaling"}
TASKS = {"translation": "translation.jsonl", "summarization": "summarization.jsonl"}


def scores_of(role: str, results: dict[str, Any]) -> str:
    """Return the table rows of a model's quality."""
    rows = []
    for task in TASKS:
        own = results[task][role]
        scores = ", ".join(f"{name} {value:.1f}" for name, value in own.items() if name != "loss")
        rows.append(f"| {task} | {own['loss']:.3f} | {scores} |")
    return "\n".join(rows)


def alphas(results: dict[str, Any]) -> str:
    """Return the table rows of the acceptance rates."""
    rows = []
    for task in TASKS:
        found = [results[task][f"alpha_{setting}"]["drafter"] for setting in ("temperature_1", "greedy")]
        cells = " | ".join(f"{each['alpha']:.3f} ± {each['standard_error']:.3f}" for each in found)
        rows.append(f"| {task} | {cells} |")
    return "\n".join(rows)


def by_licence(provenance: dict[str, Any]) -> dict[str, tuple[list[str], int]]:
    """Return the programs and libraries under each licence, and the number of their training pairs."""
    names: dict[str, list[str]] = defaultdict(list)
    pairs: dict[str, int] = defaultdict(int)
    for program in provenance["programs"]:
        names[program["licence"]].append(program["name"])
        pairs[program["licence"]] += program["pairs"]["train"]
    for library in provenance.get("libraries", ()):
        names[library["licence"]].append(f"docstrings of {library['name']}")
        pairs[library["licence"]] += library["docstrings"]
    cpython = provenance["cpython"]
    names[cpython["licence"]].append(f"CPython {cpython['python']} ({', '.join(cpython['pairs'])})")
    pairs[cpython["licence"]] += sum(counts["train"] for counts in cpython["pairs"].values())
    return {licence: (names[licence], pairs[licence]) for licence in names}


def card(role: str, results: dict[str, Any], provenance: dict[str, Any]) -> str:
    """Return the text of one card."""
    own, programs = results[role], by_licence(provenance)
    shape = json.loads((FOLDERS[role] / "config.json").read_text(encoding="utf-8"))
    before = own.get("loss_before_rounding", {})
    return CARD.format(
        role=role,
        purpose=PURPOSES[role],
        licences=" and ".join(programs),
        licence_list=", ".join(programs),
        encoder=shape["num_layers"],
        decoder=shape["num_decoder_layers"],
        width=shape["d_model"],
        heads=shape["num_heads"],
        head_width=shape["d_kv"],
        feed_forward=shape["d_ff"],
        head=HEADS[shape["tie_word_embeddings"]],
        parameters=own["parameters"],
        own=", of which the folder holds {own_parameters:,}".format_map(own) if role == "drafter" else "",
        before=" and ".join(f"{before[task]:.4f}" for task in TASKS),
        after=" and ".join(f"{results[task][role]['loss']:.4f}" for task in TASKS),
        vocabulary=VOCABULARY_SIZE,
        source=MAX_SOURCE,
        target=MAX_TARGET,
        tokens=own["training_tokens"] / 1e6,
        minutes=own["training_minutes"],
        steps=own["training_steps"],
        how=HOW[role],
        scores=scores_of(role, results),
        prompts=" and ".join(f"{results[task]['prompts']} prompts in `{name}`" for task, name in TASKS.items()),
        alphas=alphas(results),
        programs="\n".join(
            f"| {', '.join(names)} | {licence} | {pairs:,} |" for licence, (names, pairs) in programs.items()
        ),
    )


def main() -> None:
    """Write the cards of the pair."""
    write_cards(Path(__file__).parent, FOLDERS, card)


if __name__ == "__main__":
    main()
