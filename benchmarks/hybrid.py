"""A hybrid target with drafts: our rollback against plain decoding, and against a second pass after a rejection.

The target has the shape of Qwen3.5 with random weights, some 100 million of them. Its drafts are what plain
decoding says, each token wrong with a fixed probability, so that the acceptance rate is known and drafting takes
no time. After a rejection, `reread` leaves the accepted tokens uncached and reads them with the next draft, as
specdec does; `second pass` reads them at once, as llama.cpp and mlx-lm do. All in turns; prints one JSON object.

    python benchmarks/hybrid.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

import torch
from _common import floor_seconds, report
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from specdec_core import Decoder
from specdec_core.interface import DeterministicDrafter, PluginConfig
from specdec_core.models import LoadedModel, pack, wrap_model
from specdec_core.models.run.model_session import ModelSession

PROMPT = list(range(100, 164))


class Scripted(DeterministicDrafter):
    """Drafts a known text; at each position it is right with a fixed probability.

    Args:
        target: The target.
        text: The prompt and what plain decoding says after it.
        rate: The acceptance rate.
    """

    def __init__(self, target: LoadedModel, text: Sequence[int], rate: float) -> None:
        super().__init__(PluginConfig(), target.info())
        draw = Random(0)
        vocab = target.vocab_size
        self._text = [token if draw.random() < rate else (token + 1) % vocab for token in text]

    def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        """Return the next tokens of the text."""
        return self._text[len(tokens) : len(tokens) + budget]


class SecondPass:
    """Reads accepted tokens in a pass of their own, right after a rejection, while it is entered."""

    def __enter__(self) -> None:
        self._answer = ModelSession.forward

        def forward(session: ModelSession, uncached: Sequence[Sequence[int]], *draft: Any, **more: Any) -> Any:
            heads = [row[:-1] for row in uncached]
            if any(heads) and session.calls:
                self._answer(session, heads)
                uncached = [row[-1:] for row in uncached]
            return self._answer(session, uncached, *draft, **more)

        ModelSession.forward = forward  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        ModelSession.forward = self._answer  # type: ignore[method-assign]


def main() -> None:
    """Run the benchmark and print the result."""
    options = parse()
    torch.set_num_threads(options.threads)
    target = pack(wrap_model(random_target(options)))
    plain = decode(target, None, options)[0]
    results = [measure(target, plain, rate, options) for rate in options.rates]
    weights = sum(weight.numel() for weight in target.model.parameters())
    floor = floor_seconds(target.model)
    report(
        {
            "benchmark": "hybrid",
            "options": vars(options),
            "weights": weights,
            "floor_seconds": floor,
            "results": results,
        }
    )


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.6, 0.8, 0.9], help="acceptance rates")
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=96, help="new tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=12, help="layers, every fourth with attention")
    parser.add_argument("--width", type=int, default=768, help="hidden size")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def random_target(options: argparse.Namespace) -> Any:
    """Build the target."""
    config = Qwen3_5TextConfig(
        vocab_size=16_000,
        hidden_size=options.width,
        intermediate_size=3 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=options.width // 8,
        linear_num_key_heads=8,
        linear_num_value_heads=8,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
    )
    torch.manual_seed(0)
    return Qwen3_5ForCausalLM(config)


def decode(
    target: LoadedModel, drafter: Scripted | None, options: argparse.Namespace
) -> tuple[list[int], int, float]:
    """Decode; return the new tokens, the model's passes, and the seconds."""
    passes = 0
    hook = target.model.register_forward_pre_hook(lambda *_: count())

    def count() -> None:
        nonlocal passes
        passes += 1

    gamma = None if drafter is None else options.gamma
    begun = perf_counter()
    decoder = Decoder(target, drafter, gamma=gamma, temperature=0, strict=True)
    result = decoder.generate([PROMPT], max_new_tokens=options.tokens, ignore_eos=True)
    seconds = perf_counter() - begun
    hook.remove()
    return list(result.sequences[0].tokens), passes, seconds


def measure(target: LoadedModel, plain: Sequence[int], rate: float, options: argparse.Namespace) -> dict[str, Any]:
    """Time the three ways in turns."""
    drafter = Scripted(target, [*PROMPT, *plain], rate)

    def second_pass() -> tuple[list[int], int, float]:
        with SecondPass():
            return decode(target, drafter, options)

    ways: dict[str, Callable[[], tuple[list[int], int, float]]] = {
        "plain": lambda: decode(target, None, options),
        "second pass": second_pass,
        "reread": lambda: decode(target, drafter, options),
    }
    found: dict[str, list[tuple[list[int], int, float]]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, way in ways.items():
            found[name].append(way())
    speeds = {name: options.tokens / median(seconds for _, _, seconds in ran) for name, ran in found.items()}
    return {
        "acceptance_rate": rate,
        "passes": {name: ran[0][1] for name, ran in found.items()},
        "tokens_per_second": {name: round(speed, 2) for name, speed in speeds.items()},
        "seconds": {name: [round(seconds, 3) for _, _, seconds in ran] for name, ran in found.items()},
        "over_plain": {name: round(speed / speeds["plain"], 2) for name, speed in speeds.items()},
        "equal_texts": {name: all(text == plain for text, _, _ in ran) for name, ran in found.items()},
    }


if __name__ == "__main__":
    main()
