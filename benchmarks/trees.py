"""A line of draft tokens against trees, with the same drafter, each at its best size.

First the acceptance by depth and rank is measured (as `specdec measure --ranks` does). Then the autoregressive
baseline, lines of several lengths and the best trees for several numbers of nodes decode the same prompts from the
same seed, interleaved; each round starts with the baseline. Printed are the tokens per step beside what
`expected_tree_tokens` predicts, and the speed-up as a ratio within each round. Tokens per step bound it, as if
drafting and verifying were free.

    python benchmarks/trees.py
    python benchmarks/trees.py --temperatures 1 --gammas 3 5 --nodes 8
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _common import interleaved, ratios, report
from transformers.utils import logging as hf_logging

from specdec_core.decoding import BatchResult, Decoder, make_drafter
from specdec_core.interface import BatchInfo, Drafter, GammaController, GammaSession, PluginConfig, TokenTree
from specdec_core.interface.controllers import FixedGammaSession
from specdec_core.measurement.measurement_file import MeasureSettings
from specdec_core.measurement.rank_acceptance import Siblings, measure_ranks
from specdec_core.models import LoadedModel, inflate, load_model, pack
from specdec_core.study.config.prompts import read_prompts
from specdec_core.study.config.schema import PromptsConfig
from specdec_core.theory import best_tree, expected_tree_tokens

RANKS, DEPTH = 4, 8


def main() -> None:
    """Run the benchmark and print the result."""
    options = parse()
    torch.set_num_threads(options.threads)
    hf_logging.disable_progress_bar()
    target = load_model("builtin:target", packed=False)
    if options.inflate_layers:
        target = pack(inflate(target, options.inflate_layers, options.inflate_width))
    drafter = make_drafter(target, {"name": "transformer", "model": "builtin:drafter"})
    prompts = [
        str(one.text) for one in read_prompts(PromptsConfig(builtin="heldout", limit=options.prompts), Path())
    ]
    results = [at_temperature(target, drafter, prompts, value, options) for value in options.temperatures]
    report({"benchmark": "trees", "options": vars(options), "results": results})


class Fixed(GammaController):
    """Asks for the same tree in every step."""

    def __init__(self, tree: TokenTree) -> None:
        super().__init__(PluginConfig())
        self.tree = tree

    @property
    def max_gamma(self) -> int:
        """The number of nodes."""
        return len(self.tree)

    def open(self, batch: BatchInfo) -> GammaSession:
        """Start a batch."""
        return FixedGammaSession(self.max_gamma, batch.batch_size, self.tree)


def at_temperature(
    target: LoadedModel, drafter: Drafter, prompts: Sequence[str], temperature: float, options: argparse.Namespace
) -> dict[str, Any]:
    """Return the figures at one temperature."""

    def decoder(gamma: Any) -> Decoder:
        return Decoder(
            target, drafter if gamma else None, gamma=gamma or None, temperature=temperature, strict=True
        )

    siblings = Siblings(DEPTH, RANKS)
    settings = MeasureSettings(tokens=options.rank_tokens, max_new_tokens=options.new_tokens, ignore_eos=True)
    rates = measure_ranks(decoder(siblings), siblings.tree, prompts, settings, len(prompts), lambda _: None)
    trees = {f"line of {length}": TokenTree.from_widths((1,) * length) for length in options.gammas}
    trees |= {f"tree of {count}": best_tree(rates, count, DEPTH) for count in options.nodes}
    runs: dict[str, Any] = {"baseline": None, **{f"line of {length}": length for length in options.gammas}}
    runs |= {f"best-first of {n}": {"name": "tree", "nodes": n, "depth": 4} for n in options.nodes}
    runs |= {name: Fixed(tree) for name, tree in trees.items() if name not in runs}
    decoders = {name: decoder(each) for name, each in runs.items()}

    def decode(one: Decoder) -> list[BatchResult]:
        return [one.generate(prompt, max_new_tokens=options.new_tokens, ignore_eos=True) for prompt in prompts]

    functions = {name: partial(decode, one) for name, one in decoders.items()}
    seconds, found = interleaved(functions, options.repeats)
    expected = {name: expected_tree_tokens(tree, rates) for name, tree in trees.items()}
    return {
        "temperature": temperature,
        "rates": [[round(rate, 3) for rate in row] for row in rates],
        "runs": {name: row(name, seconds, found[name], expected) for name in runs},
    }


def row(
    name: str, seconds: Mapping[str, list[float]], results: list[BatchResult], expected: Mapping[str, float]
) -> dict[str, Any]:
    """Return the figures of a run."""
    steps = sum(one.metrics.row_steps for one in results)
    tokens = sum(one.metrics.tokens for one in results)
    return {
        "tokens_per_step": round(tokens / steps, 3),
        "tokens_per_step_expected": round(expected[name], 3) if name in expected else None,
        "draft_tokens_per_step": round(sum(one.metrics.drafted for one in results) / steps, 2),
        "speedup": ratios(seconds["baseline"], seconds[name]),
    }


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0, 1])
    parser.add_argument("--gammas", type=int, nargs="+", default=[2, 3, 4, 5, 6, 8], help="lengths of the lines")
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 6, 8, 12, 16], help="sizes of the trees")
    parser.add_argument("--inflate-layers", type=int, default=8, help="layers to add to the target; 0 for none")
    parser.add_argument("--inflate-width", type=int, default=8192, help="feed-forward size of those layers")
    parser.add_argument("--prompts", type=int, default=8, help="number of prompts")
    parser.add_argument("--new-tokens", type=int, default=64, help="new tokens of each prompt")
    parser.add_argument("--rank-tokens", type=int, default=4000, help="tokens from which ranks are measured")
    parser.add_argument("--repeats", type=int, default=3, help="measured rounds")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


if __name__ == "__main__":
    main()
