"""`benchmarks/gpu/run speed`: tokens per second of each method, what a step takes, and how often it launches."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import contextmanager, nullcontext
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from _against import ASSISTED, BASELINE, LOOKUP, TransformersCell, Work, drafter_of, transformers_methods
from _common import memory_bandwidth, random_llama, spread, weight_bytes
from plans import ACCEPTANCE, SHAPES, Job, LeftOutError, Run, prompts

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import Drafter, PluginConfig, StepReport
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import LoadedModel, load_model
from specdec_core.verification import SpeculativeSampling
from specdec_core.verification.distributions import density
from specdec_drafters.common.model_drafter import ModelDrafter
from specdec_drafters.eagle3.drafter import Eagle3Drafter
from specdec_drafters.eagle3.model import Eagle3Head, Eagle3SpeculatorConfig
from specdec_drafters.settings import Eagle3Config
from tests import simulated_gpu

METHODS = ("plain", "transformer", "prompt-copy", "eagle3")
STATIC = "static"
"""The static cache of transformers, with which it compiles its forward pass."""


def jobs(run: Run) -> list[Job]:
    """Return the measurements: per cell ours compiled, then those of transformers, then ours eager."""
    found: list[Job] = [({"part": "bandwidth"}, lambda: {"gigabytes_per_second": round(bandwidth(run) / 1e9, 1)})]
    cells = [(shape, *cell) for cell in run.plan.cells for shape in run.plan.drafters]
    for number, (shape, context, batch) in enumerate(cells):
        key = {"part": "tokens", "target": shape, "context": context, "batch": batch}
        theirs = (BASELINE, ASSISTED, LOOKUP) if batch == 1 else (BASELINE,)
        for mode in run.modes:
            found += [(key | {"mode": mode, "method": one}, of_specdec(run, key, mode, one)) for one in METHODS]
            if mode == "compiled":
                names = [*theirs, STATIC] if number < len(run.plan.drafters) else theirs
                found += [
                    (key | {"mode": "transformers", "method": one}, of_transformers(run, key, one))
                    for one in names
                ]
        if number == len(run.plan.drafters) - 1:
            found += small_jobs(run)
    return run.selected(found)


def small_jobs(run: Run) -> list[Job]:
    """Return what is measured once: the framework's share of a step, and launches."""
    found: list[Job] = []
    for mode, batch in product(run.modes, (1, 8)):
        found.append(
            (
                {"part": "overhead", "mode": mode, "batch": batch},
                lambda mode=mode, batch=batch: overhead(run, mode, batch),
            )
        )
    shape = next(iter(run.plan.drafters))
    for mode, method in product(run.modes, METHODS):
        key = {"part": "launches", "target": shape, "mode": mode, "method": method}
        found.append((key, lambda mode=mode, method=method: launches(run, shape, mode, method)))
    return found


def bandwidth(run: Run) -> float:
    """Return the bytes per second at which the device reads memory."""
    return float(run.kept("bandwidth", lambda: memory_bandwidth(run.device)))


# --- specdec -------------------------------------------------------------------------------------------------


def of_specdec(run: Run, key: dict[str, Any], mode: str, method: str) -> Callable[[], dict[str, Any]]:
    """Return what measures a method of specdec in a cell."""
    return lambda: specdec_speed(run, key["target"], key["context"], key["batch"], mode, method)


def specdec_speed(run: Run, shape: str, context: int, batch: int, mode: str, method: str) -> dict[str, Any]:
    """Time steps in which all sequences are decoded; the prompt's is not among them."""
    target = run.model(shape, mode=mode)
    drafter = drafter_for(run, shape, mode, method)
    decoder = decoder_of(run, target, drafter)
    rates, steps, memory = [], list[StepReport](), []
    with scripted() if method == "eagle3" else nullcontext():
        decode(run, decoder, prompts(context, batch))  # warms up, and captures
        for _ in range(run.plan.rounds):
            reset_peak(run)
            made, seconds = decode(run, decoder, prompts(context, batch))
            rates.append(sum(len(new) for step in made for new in step.outcome.committed) / seconds)
            steps += made
            memory.append(peak(run))
    failed = target.passes is not None and target.passes.failed
    if failed:
        raise RuntimeError(f"its passes run eagerly: {failed}")
    step = median(one.step_seconds for one in steps)
    read = bytes_read(target, context, batch)
    if isinstance(drafter, ModelDrafter | Eagle3Drafter):
        read += run.plan.gamma * bytes_read(drafter.loaded, context, batch)
    return {
        "tokens_per_second": spread(rates, 1),
        "tokens_per_step": round(
            sum(len(new) for one in steps for new in one.outcome.committed) / len(steps) / batch, 3
        ),
        "step_ms": round(1e3 * step, 3),
        "draft_ms": round(1e3 * median(one.draft_seconds for one in steps), 3),
        "verify_ms": round(1e3 * median(one.verify_seconds for one in steps), 3),
        "rest_ms": round(
            1e3 * median(one.step_seconds - one.draft_seconds - one.verify_seconds for one in steps), 3
        ),
        "bandwidth_share": round(read / step / bandwidth(run), 3),
        "peak_gigabytes": round(max(memory) / 1e9, 2),
    }


def decoder_of(run: Run, target: LoadedModel, drafter: Drafter | None) -> Decoder:
    """Return a decoder at temperature 1."""
    gamma = None if drafter is None else run.plan.gamma
    return Decoder(target, drafter, gamma=gamma, sampling=SamplingSettings(temperature=1.0), strict=True)


def decode(run: Run, decoder: Decoder, texts: Sequence[Sequence[int]]) -> tuple[list[StepReport], float]:
    """Decode until the first sequence ends; return the steps but the prompt's, and the seconds that they took."""
    settings = GenerationSettings(max_new_tokens=run.plan.tokens, ignore_eos=True)
    stream = decoder.stream([list(text) for text in texts], settings)
    next(stream)
    begun, steps = perf_counter(), []
    for report in stream:
        steps.append(report)
        if any(report.outcome.finished):
            break
    seconds = perf_counter() - begun
    stream.close()
    return steps, seconds


def bytes_read(loaded: LoadedModel, context: int, batch: int) -> int:
    """Return the bytes that a pass over one token of each sequence reads: weights, keys and values."""
    config, model = loaded.model.config, loaded.model
    embeddings = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else model.embed_tokens
    item = embeddings.weight.element_size()
    heads = config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return weight_bytes(model) - embeddings.weight.nbytes + 2 * heads * item * context * batch


def drafter_for(run: Run, shape: str, mode: str, method: str) -> Drafter | None:
    """Return a drafter for a target; None for plain decoding."""
    target = run.model(shape, mode=mode)
    if method == "plain":
        return None
    if method == "prompt-copy":
        return drafter_of("prompt-copy", target, min_match=1, max_match=2)
    if method == "transformer":
        return ModelDrafter(PluginConfig(), target.info(), run.model(run.plan.drafters[shape], ACCEPTANCE, mode))
    drafter: Drafter = run.kept(f"{shape} eagle3 {mode}", lambda: random_eagle3(run, shape, target))
    return drafter


def random_eagle3(run: Run, shape: str, target: LoadedModel) -> Drafter:
    """Return an EAGLE-3 head with random weights, as wide as its target."""
    sizes, vocab = SHAPES[shape], run.plan.vocab
    layers = sizes["num_hidden_layers"]
    described = Eagle3SpeculatorConfig(
        speculators_model_type="eagle3",
        transformer_layer_config={
            **sizes,
            "model_type": "llama",
            "num_hidden_layers": 1,
            "num_key_value_heads": max(sizes["num_attention_heads"] // 4, 1),
            "vocab_size": vocab,
            "max_position_embeddings": 16_384,
        },
        draft_vocab_size=run.plan.draft_vocab,
        target_hidden_size=sizes["hidden_size"],
        eagle_aux_hidden_state_layer_ids=[0, layers // 2, layers - 1],
    )
    with torch.device(run.device), torch.inference_mode():
        head = Eagle3Head(described).to(getattr(torch, run.dtype)).eval()
        head.t2d[: run.plan.draft_vocab] = True
        head.d2t.zero_()

    class RandomEagle3(Eagle3Drafter):
        def read(self, *_: Any) -> tuple[Any, tuple[int, ...]]:
            return head, (0, layers // 2, layers - 1)

    return RandomEagle3(Eagle3Config(model="random"), target.info())


@contextmanager
def scripted() -> Any:
    """Have each draft token accepted with the same probability, whatever p is: an untrained head drafts anything.

    Algorithm 1 accepts x if r < p(x) / q(x), so p(x) is set to that share of q(x); all else is computed as ever.
    """
    sample = SpeculativeSampling.sample

    def scripted_sample(rule: Any, proposal: Any, p: torch.Tensor, lenience: Any, uniforms: Any) -> Any:
        width = proposal.tokens.shape[1]
        if width:
            share = ACCEPTANCE * density(proposal.q, proposal.tokens).to(p)
            p[:, :width].scatter_(2, proposal.tokens[..., None], share[..., None])
        return sample(rule, proposal, p, lenience, uniforms)

    SpeculativeSampling.sample = scripted_sample  # type: ignore[method-assign]
    try:
        yield
    finally:
        SpeculativeSampling.sample = sample  # type: ignore[method-assign]


def reset_peak(run: Run) -> None:
    """Begin to watch for the most memory in use."""
    if run.real:
        torch.cuda.reset_peak_memory_stats()


def peak(run: Run) -> int:
    """Return the most bytes in use since `reset_peak`; 0 where nothing counts them."""
    return torch.cuda.max_memory_allocated() if run.real else 0


# --- transformers --------------------------------------------------------------------------------------------


def of_transformers(run: Run, key: dict[str, Any], method: str) -> Callable[[], dict[str, Any]]:
    """Return what measures a method of transformers in a cell."""
    return lambda: transformers_speed(run, key["target"], key["context"], key["batch"], method)


def transformers_speed(run: Run, shape: str, context: int, batch: int, method: str) -> dict[str, Any]:
    """Time `generate`, less what it takes to the first token."""
    if method == STATIC and run.device != "cpu" and not run.real:
        raise LeftOutError("nothing compiles for a simulated GPU")
    target, texts = run.model(shape), prompts(context, batch)
    work, first = (Work([texts], tokens, run.plan.gamma, 1.0) for tokens in (run.plan.tokens, 1))
    assistant = run.model(run.plan.drafters[shape], ACCEPTANCE)
    methods = {**transformers_methods(work, assistant), STATIC: {"cache_implementation": "static"}}
    # Not called but asked to decode, as the hook that counts passes would be compiled, too.
    whole = TransformersCell(work, target, **methods[method])
    begin = TransformersCell(first, target, **methods[STATIC if method == STATIC else BASELINE])
    seconds: dict[str, list[float]] = {"whole": [], "begin": []}
    for _ in range(run.plan.rounds + 1 + (method == STATIC)):
        for name, cell in (("whole", whole), ("begin", begin)):
            begun = perf_counter()
            cell._decode(texts)
            if run.device != "cpu":
                torch.cuda.synchronize()
            seconds[name].append(perf_counter() - begun)
    counted = -run.plan.rounds
    spent = [all_ - one for all_, one in zip(seconds["whole"][counted:], seconds["begin"][counted:], strict=True)]
    return {
        "tokens_per_second": spread([(run.plan.tokens - 1) * batch / max(one, 1e-9) for one in spent], 1),
        "first_token_ms": round(1e3 * median(seconds["begin"][counted:]), 2),
        "first_call_seconds": round(seconds["whole"][0], 1),
    }


# --- what the framework adds, and launches -------------------------------------------------------------------


def overhead(run: Run, mode: str, batch: int) -> dict[str, Any]:
    """Time steps of small random models: four layers and one, whose passes take no time worth mentioning."""
    vocab, hidden = (32_000, 128) if not run.plan.few else (100, 16)
    with tempfile.TemporaryDirectory() as folder:
        for name, layers in (("target", 4), ("drafter", 1)):
            random_llama(vocab, layers, hidden).save_pretrained(Path(folder) / name)
        settings = {"device": run.device, "dtype": run.dtype, "packed": False, "compile": mode == "compiled"}
        target = load_model(Path(folder) / "target", **settings)
        drafter = drafter_of("transformer", target, model=str(Path(folder) / "drafter"), **settings)
    decoder = decoder_of(run, target, drafter)
    texts = torch.randint(0, vocab, (batch, 100)).tolist()
    decode(run, decoder, texts)
    steps, _ = decode(run, decoder, texts)
    return {
        "step_ms": spread([1e3 * one.step_seconds for one in steps]),
        "draft_ms": spread([1e3 * one.draft_seconds for one in steps]),
        "verify_ms": spread([1e3 * one.verify_seconds for one in steps]),
        "rest_ms": spread([1e3 * (one.step_seconds - one.draft_seconds - one.verify_seconds) for one in steps]),
    }


def launches(run: Run, shape: str, mode: str, method: str) -> dict[str, Any]:
    """Count what a step launches and waits for: by torch's profiler, or on the simulated device."""
    if run.device == "cpu":
        raise LeftOutError("a CPU launches nothing")
    decoder = decoder_of(run, run.model(shape, mode=mode), drafter_for(run, shape, mode, method))
    texts, calls = prompts(110 if run.plan.few else 128, 1), dict[str, float]()
    with scripted() if method == "eagle3" else nullcontext():
        for _ in range(2):
            decode(run, decoder, texts)
        if not run.real:
            with simulated_gpu.counted() as counts:
                steps, _ = decode(run, decoder, texts)
            return {
                "launches": round(counts.launches / (len(steps) + 1), 1),
                "waits": round(counts.waits / (len(steps) + 1), 1),
            }
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            steps, _ = decode(run, decoder, texts)
    for event in profile.key_averages():
        if event.key.startswith(("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaMemcpy")) or (
            "Synchronize" in event.key
        ):
            calls[event.key] = round(event.count / (len(steps) + 1), 1)
    return {
        "launches": round(sum(count for name, count in calls.items() if "aunch" in name or "Memcpy" in name), 1),
        "waits": round(sum(count for name, count in calls.items() if "Synchronize" in name), 1),
        "calls": calls,
    }
