"""Write the model cards from RESULTS.json and provenance.json.

Run from the repository root: `python -m recipes.builtin_digits.cards`
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipes.builtin_pair.architectures import BUILTIN
from recipes.builtin_pair.cards import architecture, write_cards

# ruff: noqa: E501 (rows of a Markdown table cannot be broken)
FOLDERS = {role: BUILTIN / f"digits-{role}" for role in ("target", "drafter")}

CARD = """\
---
license: cc-by-4.0
library_name: transformers
---

# specdec built-in digits {role}

{purpose}

It draws handwritten digits of 8 x 8 pixels, pixel by pixel in reading order, for a class as the prompt. Its tokens are
not text: 0 to 16 are gray levels, 17 to 26 the classes 0 to 9. A picture is one class and 64 levels. There is no
tokenizer, and no token for a beginning or an end.

| | |
|---|---|
| architecture | {architecture} |
| parameters | {parameters:,} |
| stored as | float16 safetensors |
| training | {tokens:.1f} million tokens in {minutes:.0f} minutes on one of two shared CPU cores ({steps} steps), from scratch; {how} |
| held-out pictures | {bits:.3f} ± {error:.3f} bits per pixel over {held} pictures |

## Data and licence

{train} of the 1,797 digits that scikit-learn ships, the test set of "Optical Recognition of Handwritten Digits"
(E. Alpaydin, C. Kaynak 1998, UCI Machine Learning Repository, <https://archive.ics.uci.edu/dataset/80>), which UCI licenses
under CC BY 4.0. The weights are under the same licence. The other {held} pictures were held out. The shape and
the dropout were chosen with them in sight, so that their bits per pixel are a little optimistic.

## Drafting

Acceptance rate on pictures that the target drew: {drawn} at temperature 1, one of each class at temperature 0.

| drafter | temperature 1: mean of sum min(p, q) | greedy: share of pixels where both argmax agree |
|---|---|---|
{alphas}

Alpha is that of Corollary 3.6 of [arXiv 2211.17192](https://arxiv.org/abs/2211.17192).

## Made by

`models/recipes/builtin_digits` in the specdec repository, with every command.
"""

PURPOSES = {
    "target": "A small model of pixels, for speculative decoding where tokens are not text. Its distribution is preserved.",
    "drafter": "The smaller model of pixels, distilled from `digits-target`. It proposes draft tokens, which the target\nverifies.",
}
HOW = {
    "target": "cross-entropy, half of the pictures moved by a pixel",
    "drafter": "KL and total variation to the target's distribution",
}


def card(role: str, results: dict[str, Any], provenance: dict[str, Any]) -> str:
    """Return the text of one card."""
    own = results[role]
    rows = []
    for name, label in (("drafter", "`builtin:digits-drafter`"), ("bigram", "`builtin:digits-bigram`")):
        found = [results[name][key] for key in ("alpha_temperature_1", "alpha_greedy")]
        rows.append(
            f"| {label} | "
            + " | ".join(f"{one['alpha']:.3f} ± {one['standard_error']:.3f}" for one in found)
            + " |"
        )
    return CARD.format(
        role=role,
        purpose=PURPOSES[role],
        architecture=architecture(FOLDERS[role]),
        parameters=own["parameters"],
        tokens=own["training_tokens"] / 1e6,
        minutes=own["training_minutes"],
        steps=own["training_steps"],
        how=HOW[role],
        bits=own["bits_per_pixel"],
        error=own["standard_error"],
        held=results["held_out_pictures"],
        train=f"{provenance['pictures']['train']:,}",
        drawn=results["drawn_pictures"],
        alphas="\n".join(rows),
    )


def main() -> None:
    """Write the cards of the two models."""
    write_cards(Path(__file__).parent, FOLDERS, card)


if __name__ == "__main__":
    main()
