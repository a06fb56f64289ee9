"""Speculative beam search: identity with transformers, BLEU, passes and tokens read; and the speed of each.

The built-in T5 pair translates the built-in test set, greedily and with beams of several widths w, each without a
drafter and with drafts of several widths u. What does not depend on the machine (`--part counts`) is decoded in
batches, since a sequence does not depend on those beside it. For speed (`--part speed`), `generate(num_beams=w)`,
beam search without a drafter and with one take turns, a prompt at a time. Prints one JSON object.

    python benchmarks/beams.py --part counts > docs/data/beams.json
    python benchmarks/beams.py --part speed --prompts 40 --beams 4 --factors 1 2
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from _common import interleaved, ratios, report, spread

from specdec_core import Decoder, load_model
from specdec_core.decoding.counts import Metrics
from specdec_core.models import LoadedModel, ModelSession
from specdec_core.study.config.prompt_file import PromptText
from specdec_core.study.config.prompts import read_prompts
from specdec_core.study.config.schema import PromptsConfig
from specdec_core.study.report.quality import score

DRAFTER = {"name": "transformer", "model": "builtin:t5-drafter"}


def main() -> None:
    """Print the counts, or the speeds."""
    options = parse()
    torch.set_num_threads(options.threads)
    target = load_model("builtin:t5-target")
    prompts = read_prompts(PromptsConfig(builtin="translation", limit=options.prompts), Path())
    part = counts if options.part == "counts" else speeds
    report(
        {"benchmark": "beams", "prompts": len(prompts), "gamma": options.gamma, **part(target, prompts, options)}
    )


def counts(target: LoadedModel, prompts: Sequence[PromptText], options: argparse.Namespace) -> dict[str, Any]:
    """Return what is the same on every machine."""
    read = _Reads(target)
    with read.counting:
        return {"rows": list(_counts(read, prompts, options))}


def _counts(read: _Reads, prompts: Sequence[PromptText], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    target = read.target
    texts, _ = _decode(target, None, prompts, options, 1, None)
    yield {"w": 1, "bleu": _bleu(texts, prompts)}
    for beams in options.beams:
        read.clear()
        plain, metrics = _decode(target, None, prompts, options, beams, None)
        theirs = _library(target, prompts, options, beams)
        yield {
            "w": beams,
            "bleu": _bleu(plain, prompts),
            "same_as_transformers": _share(plain, theirs),
            **_passes(metrics, read),
        }
        for factor in options.factors:
            read.clear()
            drafted, metrics = _decode(target, DRAFTER, prompts, options, beams, round(factor * beams))
            yield {
                "w": beams,
                "u": round(factor * beams),
                "same_as_without": _share(drafted, plain),
                "alpha": round(metrics.alpha or 0.0, 3),
                **_passes(metrics, read),
            }


def speeds(target: LoadedModel, prompts: Sequence[PromptText], options: argparse.Namespace) -> dict[str, Any]:
    """Return seconds and ratios, of rounds in which all take turns."""
    options.batch = 1
    rows = []
    for beams in options.beams:
        functions = {
            "transformers": partial(_library, target, prompts, options, beams),
            "plain": partial(_decode, target, None, prompts, options, beams, None),
        }
        for factor in options.factors:
            width = round(factor * beams)
            functions[f"u={width}"] = partial(_decode, target, DRAFTER, prompts, options, beams, width)
        seconds, _ = interleaved(functions, options.repeats)
        for name, values in seconds.items():
            row = {"w": beams, "run": name, "seconds": spread(values)}
            row["speedup"] = ratios(seconds["plain"], values)
            rows.append(row)
    return {"rows": rows}


class _Reads:
    """Counts the tokens that the target reads, without those of prompts."""

    def __init__(self, target: LoadedModel) -> None:
        self.tokens, self.target = 0, target
        forward, counted = ModelSession.forward, self

        def wrapped(
            session: ModelSession, uncached: Any, draft: Any = None, lengths: Any = None, *rest: Any, **more: Any
        ) -> Any:
            if session._loaded is counted.target and draft is not None:
                counted.tokens += sum([draft.shape[1]] * len(uncached) if lengths is None else lengths)
            return forward(session, uncached, draft, lengths, *rest, **more)

        self.counting = mock.patch.object(ModelSession, "forward", wrapped)

    def clear(self) -> None:
        """Begin again."""
        self.tokens = 0


def _decode(
    target: LoadedModel,
    drafter: dict[str, str] | None,
    prompts: Sequence[PromptText],
    options: argparse.Namespace,
    beams: int,
    width: int | None,
) -> tuple[list[str], Metrics]:
    gamma = None if drafter is None else options.gamma
    decoder = Decoder(target, drafter, gamma=gamma, temperature=0, draft_beams=width, strict=True)
    texts, metrics = [], Metrics()
    for start in range(0, len(prompts), options.batch):
        batch = [prompt.text for prompt in prompts[start : start + options.batch]]
        result = decoder.generate(batch, max_new_tokens=options.max_new_tokens, beams=beams)
        texts += [str(one) for one in result]
        metrics += result.metrics
    return texts, metrics


def _library(
    target: LoadedModel, prompts: Sequence[PromptText], options: argparse.Namespace, beams: int
) -> list[str]:
    texts = []
    for start in range(0, len(prompts), options.batch):
        batch = [prompt.text for prompt in prompts[start : start + options.batch]]
        encoded = target.tokenizer(batch, return_tensors="pt", padding=True)
        tokens = target.model.generate(
            input_ids=encoded["input_ids"],
            attention_mask=encoded["attention_mask"],
            num_beams=beams,
            max_new_tokens=options.max_new_tokens,
            do_sample=False,
        )
        texts += target.tokenizer.batch_decode(tokens, skip_special_tokens=True)
    return texts


def _passes(metrics: Metrics, read: _Reads) -> dict[str, float]:
    return {
        "steps": metrics.tokens,
        "passes": metrics.row_steps,
        "saved": round(1 - metrics.row_steps / metrics.tokens, 4),
        "steps_per_pass": round(metrics.block_efficiency, 3),
        "tokens_per_pass": round(read.tokens / metrics.row_steps, 2),
    }


def _bleu(texts: Sequence[str], prompts: Sequence[PromptText]) -> float:
    return round(score(texts, [prompt.references for prompt in prompts]).corpus["bleu"], 2)


def _share(texts: Sequence[str], others: Sequence[str]) -> float:
    return sum(one == other for one, other in zip(texts, others, strict=True)) / len(texts)


def parse() -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--part", choices=["counts", "speed"], default="counts")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--beams", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--factors", type=float, nargs="+", default=[1, 2], help="u over w")
    parser.add_argument("--gamma", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=10, help="prompts decoded together for counts")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
