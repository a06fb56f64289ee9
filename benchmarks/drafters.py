"""The cost of a draft token: each drafter at several context lengths and vocabulary sizes, and with real targets.

Two parts, in one JSON object:

* `tokens`: microseconds per draft token, including `propose` and `commit`, on a synthetic text (phrases drawn by
  Zipf's law) for each context length and vocabulary size, and the bytes of the drafter's tables or weights.
* `targets`: the cost coefficient c, which is the time of a draft token over that of a target forward pass in the
  autoregressive baseline, with acceptance rate and block efficiency. Measured with the built-in target and with
  the same inflated to about 100 million parameters. Runs are interleaved.

    python benchmarks/drafters.py
    python benchmarks/drafters.py --vocabs 32000 --contexts 8000 --only ngram-1 ngram-2 --part tokens
"""

from __future__ import annotations

import argparse
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from _common import floor_seconds, random_llama, report, spread
from transformers.utils import logging as hf_logging

from specdec_core import default_registry
from specdec_core.decoding.counts import Metrics
from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.drawing import DraftRecorder
from specdec_core.interface import Drafter, DraftSession, Outcome, SessionInfo, TargetInfo
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import LoadedModel, inflate, load_model, wrap_model
from specdec_core.sampling.generators import RowGenerators
from specdec_core.sampling.logits import LogitsToProbs
from specdec_core.study import run_model
from specdec_core.study.config.prompts import read_prompts
from specdec_core.study.config.schema import PromptsConfig
from specdec_core.study.config.study import BASELINE, Run
from specdec_core.study.run.factory import make_decoder

TEXT_TOKENS = 2_000_000
HIDDEN = 256

COPY: dict[str, Any] = {"name": "prompt-copy"}
BIGRAM: dict[str, Any] = {"name": "ngram", "text": "builtin:stdlib", "order": 2}
SMALL: dict[str, Any] = {"name": "transformer", "model": "builtin:drafter"}
DRAFTERS: dict[str, dict[str, Any]] = {
    "random": {"name": "random"},
    **{f"ngram-{order}": {**BIGRAM, "order": order} for order in (1, 2, 3, 5)},
    "prompt-copy": COPY,
    "chain of prompt-copy and ngram-2": {"name": "chain", "drafters": [{**COPY, "min_match": 2}, BIGRAM]},
    "heads": {"name": "heads", "model": "builtin:heads"},
    "eagle3": {"name": "eagle3", "model": "builtin:eagle3"},
    "parallel": {"name": "parallel", "model": "builtin:parallel"},
    "transformer": SMALL,
    "hierarchical on ngram-2": {**SMALL, "name": "hierarchical", "drafter": BIGRAM, "gamma": 2},
}


def main() -> None:
    """Run the benchmark and print the result."""
    options = parse()
    torch.set_num_threads(options.threads)
    hf_logging.disable_progress_bar()
    result: dict[str, Any] = {"benchmark": "drafters", "gamma": options.gamma, "temperature": options.temperature}
    if options.part in ("tokens", "both"):
        result["tokens"] = [cell for vocab in options.vocabs for cell in measure_vocabulary(vocab, options)]
    if options.part in ("targets", "both"):
        target = load_model("builtin:target")
        inflated = inflate(target, options.inflate_layers, options.inflate_width)
        result["targets"] = [measure_with_target(model, options) for model in (target, inflated)]
    report(result)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("tokens", "targets", "both"), default="both")
    parser.add_argument(
        "--only", nargs="+", metavar="DRAFTER", help="drafters to measure, by their name in the result"
    )
    parser.add_argument("--vocabs", type=int, nargs="+", default=[1_000, 8_000, 32_000])
    parser.add_argument(
        "--contexts", type=int, nargs="+", default=[128, 1_000, 8_000], help="context lengths in tokens"
    )
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=100, help="drafts timed per context length")
    parser.add_argument("--prompts", type=int, default=4, help="number of built-in prompts, with a target")
    parser.add_argument("--new-tokens", type=int, default=48, help="new tokens per prompt")
    parser.add_argument("--repeats", type=int, default=3, help="measured rounds, with a target")
    parser.add_argument("--inflate-layers", type=int, default=16)
    parser.add_argument("--inflate-width", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def is_selected(name: str, options: argparse.Namespace) -> bool:
    """Whether to measure a drafter."""
    return options.only is None or name in options.only


def measure_vocabulary(vocab: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the results for one vocabulary size: every drafter at every context length."""
    text = synthetic_text(vocab, TEXT_TOKENS)
    with tempfile.TemporaryDirectory() as folder:
        for name, make in synthetic_drafters(vocab, text, Path(folder)).items():
            if not is_selected(name, options):
                continue
            drafter = make()
            for context in options.contexts:
                times, session_bytes = time_drafts(
                    drafter, vocab, text[-context - 8 * options.steps :], context, options
                )
                yield {
                    "drafter": name,
                    "vocab": vocab,
                    "context": context,
                    "microseconds_per_token": spread([1e6 * seconds for seconds in times], 2),
                    "drafter_bytes": bytes_of(drafter),
                    "session_bytes": session_bytes,
                }


def synthetic_text(vocab: int, count: int) -> np.ndarray:
    """Return token ids `[count]` with the repetitions of text: phrases of 2 to 8 tokens, drawn by Zipf's law."""
    generator = np.random.default_rng(0)
    words = np.minimum(generator.zipf(1.2, count // 4) - 1, vocab - 1)
    ends = np.cumsum(generator.integers(2, 9, len(words) // 6))
    phrases = np.split(words, ends[ends < len(words)])[:-1]
    chosen = np.minimum(generator.zipf(1.1, count // 3) - 1, len(phrases) - 1)
    return np.concatenate([phrases[index] for index in chosen])[:count].astype(np.int32)


def synthetic_drafters(vocab: int, text: np.ndarray, folder: Path) -> Mapping[str, Callable[[], Drafter]]:
    """Return a constructor for each drafter, by name."""
    target = wrap_model(random_llama(vocab, layers=1, width=HIDDEN))
    info = target.info(folder)

    def build(name: str, **settings: Any) -> Drafter:
        registry = default_registry()
        config = run_model(registry).model_validate({"drafter": {"name": name, **settings}, "gamma": 1}).drafter
        return registry.create("drafter", name, config, info)

    def chain() -> Drafter:
        from specdec_drafters.chain import ChainDrafter
        from specdec_drafters.settings import ChainConfig

        return ChainDrafter(ChainConfig(drafters=(build("prompt-copy", min_match=2), ngram(2))), info)

    def ngram(order: int) -> Drafter:
        return ngram_of(info, text, order)

    def transformer() -> Drafter:
        random_llama(vocab, layers=2, width=128).save_pretrained(folder / "small")
        return build("transformer", model=str(folder / "small"))

    return {
        "random": partial(build, "random"),
        **{f"ngram-{order}": partial(ngram, order) for order in (1, 2, 3, 5)},
        "prompt-copy": partial(build, "prompt-copy"),
        "prompt-copy, most frequent": partial(build, "prompt-copy", prefer="frequent"),
        "chain of prompt-copy and ngram-2": chain,
        "transformer": transformer,
    }


def ngram_of(info: TargetInfo, text: np.ndarray, order: int) -> Drafter:
    """Return an n-gram drafter with tables estimated from token ids."""
    from specdec_drafters.ngram.candidates import NgramCandidates
    from specdec_drafters.ngram.drafter import NgramDrafter
    from specdec_drafters.ngram.kneser_ney import fit
    from specdec_drafters.settings import NgramConfig

    drafter = object.__new__(NgramDrafter)
    drafter.target, drafter.config = info, NgramConfig(text="builtin:stdlib", order=order)
    drafter.tables = fit([text], info.vocab_size, order).tables()
    drafter.candidates = NgramCandidates(drafter.tables, drafter.config.candidates)
    return drafter


def time_drafts(
    drafter: Drafter, vocab: int, text: np.ndarray, context: int, options: argparse.Namespace
) -> tuple[list[float], int]:
    """Return the seconds per token of each draft, and the bytes that the session allocated.

    After each draft, up to two of its tokens are accepted, and the text's next token follows.
    """
    stream = [int(token) for token in text]
    tokens, following = stream[:context], iter(stream[context:])
    recorder = DraftRecorder(
        LogitsToProbs(SamplingSettings(temperature=options.temperature)),
        RowGenerators([0]),
        1,
        vocab,
        options.gamma,
        "cpu",
    )
    info = SessionInfo(1, vocab, context + 8 * options.steps, options.gamma, "cpu")
    tracemalloc.start()
    session = drafter.open(info)
    draft_once(session, tokens, following, recorder, options.gamma)  # warm-up: reads the context
    allocated = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    with torch.inference_mode():
        times = [draft_once(session, tokens, following, recorder, options.gamma) for _ in range(options.steps)]
    session.close()
    return times, allocated


def draft_once(
    session: DraftSession, tokens: list[int], following: Iterator[int], recorder: DraftRecorder, gamma: int
) -> float:
    """Draft once and commit two tokens of it; return the seconds per draft token."""
    start = perf_counter()
    recorder.start([tokens], (gamma,))
    proposal = session.propose(recorder)
    spent = perf_counter() - start
    drafted = proposal.lengths[0]
    accepted = min(2, drafted)
    new = (*proposal.tokens[0, :accepted].tolist(), next(following))
    tokens.extend(new)
    start = perf_counter()
    session.commit(Outcome((drafted,), (accepted,), (new,), (False,), drafted > 0))
    return (spent + perf_counter() - start) / max(drafted, 1)


def bytes_of(drafter: object) -> int:
    """Return the bytes of the arrays and weights that a drafter holds, without the target's."""
    sizes: dict[int, int] = {}
    todo = [drafter]
    visited: set[int] = set()
    while todo:
        part = todo.pop()
        if id(part) in visited or isinstance(part, (TargetInfo, type)):
            continue
        visited.add(id(part))
        if isinstance(part, torch.nn.Module):
            todo += [*part.parameters(), *part.buffers()]
        elif isinstance(part, torch.Tensor):
            sizes[part.data_ptr()] = part.nbytes
        elif isinstance(part, np.ndarray):
            sizes[part.ctypes.data] = part.nbytes
        elif isinstance(part, dict):
            todo += part.values()
        elif isinstance(part, (list, tuple)):
            todo += part
        elif type(part).__module__.startswith("specdec"):
            todo += getattr(part, "__dict__", {}).values()
    return sum(sizes.values())


def measure_with_target(target: LoadedModel, options: argparse.Namespace) -> dict[str, Any]:
    """Return c, acceptance rate and block efficiency of each drafter with a target; runs are interleaved."""
    prompts = [p.text for p in read_prompts(PromptsConfig(builtin="heldout", limit=options.prompts), Path())]
    settings = GenerationSettings(max_new_tokens=options.new_tokens, ignore_eos=True)
    decoders = dict(decoders_for(target, options))
    metrics: dict[str, list[Any]] = {name: [] for name in decoders}
    for turn in range(options.repeats + 1):
        for name, decoder in decoders.items():
            total = sum((decoder.generate([prompt], settings).metrics for prompt in prompts), Metrics())
            if turn:  # the first round is a warm-up
                metrics[name].append(total)
    forward = [total.verify_seconds_per_call for total in metrics[BASELINE]]
    return {
        "target": target.name,
        "parameters": sum(weight.numel() for weight in target.model.parameters()),
        "milliseconds_per_forward": spread([1e3 * seconds for seconds in forward], 3),
        "floor_milliseconds_per_forward": round(1e3 * floor_seconds(target.model), 3),
        "drafters": {
            name: {
                "c": spread([m.draft_seconds_per_call / f for m, f in zip(runs, forward, strict=True)], 5),
                "microseconds_per_token": spread([1e6 * m.draft_seconds_per_call for m in runs], 1),
                "acceptance_rate": round(median(m.alpha for m in runs), 4),
                "block_efficiency": round(median(m.block_efficiency for m in runs), 3),
            }
            for name, runs in metrics.items()
            if name != BASELINE
        },
    }


def decoders_for(target: LoadedModel, options: argparse.Namespace) -> Iterator[tuple[str, Decoder]]:
    """Yield the autoregressive baseline, then a decoder for each drafter."""
    registry = default_registry()
    sampling = SamplingSettings(temperature=options.temperature)
    yield BASELINE, Decoder(target, sampling=sampling)
    for name, settings in DRAFTERS.items():
        if is_selected(name, options):
            config = run_model(registry).model_validate({"drafter": settings, "gamma": options.gamma})
            run = Run(name=name, drafter=config.drafter, gamma=config.gamma)
            yield name, make_decoder(target, run, registry=registry, sampling=sampling, strict=True)


if __name__ == "__main__":
    main()
