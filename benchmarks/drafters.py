"""What a draft token costs: each drafter at several contexts and vocabularies, and beside real targets.

Two parts, both in one JSON object:

* `tokens`: microseconds a draft token, `propose` and `commit` included, on a synthetic text (phrases drawn by
  Zipf's law) at each context and vocabulary, and the bytes of the drafter's tables or weights.
* `targets`: c, the time of a draft token over the time of a plain target call, on the built-in target and on one
  inflated to some 100 million parameters, with alpha and tokens a call. All decode in turns.

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
from _common import floor_seconds, report, spread
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as library_logging

from specdec_core import default_registry
from specdec_core.border import Drafter, DraftRequest, DraftSession, Outcome, SessionInfo, TargetInfo
from specdec_core.decoding import Decoder, Metrics
from specdec_core.decoding.drafting import DraftRecorder
from specdec_core.models import LoadedModel, inflate, load_model, wrap_model
from specdec_core.randomness import RowStreams
from specdec_core.sampling import Standardiser
from specdec_core.settings import GenerationSettings, SamplingSettings
from specdec_core.shipped import PROMPTS
from specdec_core.study import run_model
from specdec_core.study.config import PromptsConfig
from specdec_core.study.making import make_decoder
from specdec_core.study.prompts import read_prompts
from specdec_core.study.study import PLAIN, Run

TEXT_TOKENS = 2_000_000
HIDDEN = 256

COPY: dict[str, Any] = {"name": "prompt-copy"}
BIGRAM: dict[str, Any] = {"name": "ngram", "text": "builtin:stdlib", "order": 2}
SMALL: dict[str, Any] = {"name": "transformer", "model": "builtin:drafter"}
BESIDE_TARGETS: dict[str, dict[str, Any]] = {
    "random": {"name": "random"},
    **{f"ngram-{order}": {**BIGRAM, "order": order} for order in (1, 2, 3, 5)},
    "prompt-copy": COPY,
    "chain of prompt-copy and ngram-2": {"name": "chain", "drafters": [COPY, BIGRAM]},
    "heads": {"name": "heads", "model": "builtin:heads"},
    "transformer": SMALL,
    "hierarchical on ngram-2": {**SMALL, "name": "hierarchical", "drafter": BIGRAM, "gamma": 2},
}


def main() -> None:
    """Measure what the options ask for."""
    options = parse()
    torch.set_num_threads(options.threads)
    library_logging.disable_progress_bar()
    result: dict[str, Any] = {"benchmark": "drafters", "gamma": options.gamma, "temperature": options.temperature}
    if options.part in ("tokens", "both"):
        result["tokens"] = [cell for vocab in options.vocabs for cell in of_vocabulary(vocab, options)]
    if options.part in ("targets", "both"):
        plain = load_model("builtin:target")
        inflated = inflate(plain, options.inflate_layers, options.inflate_width)
        result["targets"] = [beside(target, options) for target in (plain, inflated)]
    report(result)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("tokens", "targets", "both"), default="both")
    parser.add_argument("--only", nargs="+", metavar="DRAFTER", help="names as the result has them")
    parser.add_argument("--vocabs", type=int, nargs="+", default=[1_000, 8_000, 32_000])
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 1_000, 8_000], help="committed tokens")
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=100, help="drafts timed in each cell")
    parser.add_argument("--prompts", type=int, default=4, help="built-in prompts decoded beside a target")
    parser.add_argument("--new-tokens", type=int, default=48, help="tokens decoded after each prompt")
    parser.add_argument("--repeats", type=int, default=3, help="rounds beside a target")
    parser.add_argument("--inflate-layers", type=int, default=16)
    parser.add_argument("--inflate-width", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def wanted(name: str, options: argparse.Namespace) -> bool:
    """Whether a drafter is to be measured."""
    return options.only is None or name in options.only


# --- a draft token by itself ---------------------------------------------------------------------------------


def of_vocabulary(vocab: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the cells of one vocabulary: every drafter at every context."""
    text = synthetic_text(vocab, TEXT_TOKENS)
    with tempfile.TemporaryDirectory() as folder:
        for name, make in synthetic_drafters(vocab, text, Path(folder)).items():
            if not wanted(name, options):
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
                    "microseconds_a_token": spread([1e6 * seconds for seconds in times], 2),
                    "drafter_bytes": bytes_of(drafter),
                    "session_bytes": session_bytes,
                }


def synthetic_text(vocab: int, count: int) -> np.ndarray:
    """Return token ids `[count]` that repeat themselves as text does: phrases of 2 to 8 words, by Zipf's law."""
    generator = np.random.default_rng(0)
    words = np.minimum(generator.zipf(1.2, count // 4) - 1, vocab - 1)
    ends = np.cumsum(generator.integers(2, 9, len(words) // 6))
    phrases = np.split(words, ends[ends < len(words)])[:-1]
    chosen = np.minimum(generator.zipf(1.1, count // 3) - 1, len(phrases) - 1)
    return np.concatenate([phrases[place] for place in chosen])[:count].astype(np.int32)


def synthetic_drafters(vocab: int, text: np.ndarray, folder: Path) -> Mapping[str, Callable[[], Drafter]]:
    """Return how each drafter is made for a vocabulary, by name."""
    target = random_llama(vocab, layers=1, width=HIDDEN)
    info = target.info(folder)

    def build(name: str, **settings: Any) -> Drafter:
        registry = default_registry()
        config = run_model(registry).model_validate({"drafter": {"name": name, **settings}, "gamma": 1}).drafter
        return registry.create("drafter", name, config, info)

    def chain() -> Drafter:
        from specdec_drafters.chain import ChainDrafter

        return ChainDrafter(ChainDrafter.Config(drafters=(build("prompt-copy"), ngram(2))), info)

    def ngram(order: int) -> Drafter:
        return ngram_of(info, text, order)

    def transformer() -> Drafter:
        random_llama(vocab, layers=2, width=128).model.save_pretrained(folder / "small")
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
    """Return the n-gram drafter on tables estimated from token ids, without a file between."""
    from specdec_drafters.ngram.drafter import NgramDrafter
    from specdec_drafters.ngram.kneser_ney import estimate

    drafter = object.__new__(NgramDrafter)
    drafter.target, drafter.tables = info, estimate([text], info.vocab_size, order)
    return drafter


def random_llama(vocab: int, layers: int, width: int) -> LoadedModel:
    """Build a random model with room for the longest context."""
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=16_384,
    )
    return wrap_model(LlamaForCausalLM(config))


def time_drafts(
    drafter: Drafter, vocab: int, text: np.ndarray, context: int, options: argparse.Namespace
) -> tuple[list[float], int]:
    """Return the seconds a token of each draft, and what the session held at the end, in bytes.

    After each draft two of its tokens are kept, where it has so many, and the text's next token follows.
    """
    stream = [int(token) for token in text]
    tokens, following = stream[:context], iter(stream[context:])
    recorder = DraftRecorder(
        Standardiser(SamplingSettings(temperature=options.temperature)),
        RowStreams([0]),
        1,
        vocab,
        options.gamma,
        "cpu",
    )
    info = SessionInfo(1, vocab, context + 8 * options.steps, options.gamma, "cpu")
    tracemalloc.start()
    session = drafter.open(info)
    draft_once(
        session, tokens, following, recorder, options.gamma
    )  # reads the context, which is not a draft's cost
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    with torch.inference_mode():
        times = [draft_once(session, tokens, following, recorder, options.gamma) for _ in range(options.steps)]
    session.close()
    return times, held


def draft_once(
    session: DraftSession, tokens: list[int], following: Iterator[int], recorder: DraftRecorder, gamma: int
) -> float:
    """Draft, keep two, go on; return the seconds for each token drafted."""
    begun = perf_counter()
    recorder.start([tokens], (gamma,))
    proposal = session.propose(DraftRequest([tokens], (gamma,), recorder))
    spent = perf_counter() - begun
    drafted = proposal.lengths[0]
    kept = min(2, drafted)
    new = (*proposal.tokens[0, :kept].tolist(), next(following))
    tokens.extend(new)
    begun = perf_counter()
    session.commit(Outcome((drafted,), (kept,), (new,), (False,), drafted > 0))
    return (spent + perf_counter() - begun) / max(drafted, 1)


def bytes_of(drafter: object) -> int:
    """Return the bytes of the arrays and weights that a drafter holds, the target's left out."""
    seen: dict[int, int] = {}
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
            seen[part.data_ptr()] = part.nbytes
        elif isinstance(part, np.ndarray):
            seen[part.ctypes.data] = part.nbytes
        elif isinstance(part, dict):
            todo += part.values()
        elif isinstance(part, (list, tuple)):
            todo += part
        elif type(part).__module__.startswith("specdec"):
            todo += getattr(part, "__dict__", {}).values()
    return sum(seen.values())


# --- beside a target -----------------------------------------------------------------------------------------


def beside(target: LoadedModel, options: argparse.Namespace) -> dict[str, Any]:
    """Return c, alpha and tokens a call of each drafter beside a target, all decoding in turns."""
    prompts = [p.text for p in read_prompts(PromptsConfig(file=PROMPTS, limit=options.prompts), Path())]
    settings = GenerationSettings(max_new_tokens=options.new_tokens, ignore_eos=True)
    decoders = dict(decoders_for(target, options))
    metrics: dict[str, list[Any]] = {name: [] for name in decoders}
    for turn in range(options.repeats + 1):
        for name, decoder in decoders.items():
            total = sum((decoder.generate([prompt], settings).metrics for prompt in prompts), Metrics())
            if turn:  # the first round is not counted
                metrics[name].append(total)
    plain = [total.verify_seconds_per_call for total in metrics[PLAIN]]
    return {
        "target": target.name,
        "parameters": sum(weight.numel() for weight in target.model.parameters()),
        "milliseconds_a_call": spread([1e3 * seconds for seconds in plain], 3),
        "floor_milliseconds_a_call": round(1e3 * floor_seconds(target.model), 3),
        "drafters": {
            name: {
                "c": spread([m.draft_seconds_per_call / p for m, p in zip(runs, plain, strict=True)], 5),
                "microseconds_a_token": spread([1e6 * m.draft_seconds_per_call for m in runs], 1),
                "alpha": round(median(m.alpha for m in runs), 4),
                "tokens_per_call": round(median(m.block_efficiency for m in runs), 3),
            }
            for name, runs in metrics.items()
            if name != PLAIN
        },
    }


def decoders_for(target: LoadedModel, options: argparse.Namespace) -> Iterator[tuple[str, Decoder]]:
    """Yield plain decoding, then a decoder for each drafter."""
    registry = default_registry()
    sampling = SamplingSettings(temperature=options.temperature)
    yield PLAIN, Decoder(target, sampling=sampling)
    for name, settings in BESIDE_TARGETS.items():
        if wanted(name, options):
            config = run_model(registry).model_validate({"drafter": settings, "gamma": options.gamma})
            run = Run(name, config.drafter, config.gamma)
            yield name, make_decoder(target, run, registry=registry, sampling=sampling, strict=True)


if __name__ == "__main__":
    main()
