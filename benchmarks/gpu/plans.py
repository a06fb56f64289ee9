"""What is measured on a GPU: shapes, contexts and batches, and models with random weights that agree by design."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from specdec_core.models import LoadedModel, compile_model, wrap_model

Job = tuple[dict[str, Any], Callable[[], dict[str, Any]]]
"""The key of a row, and what measures it."""


class LeftOutError(Exception):
    """A row that cannot be measured here; the message is the reason."""


SHAPES: dict[str, dict[str, int]] = {
    "8B": {"hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "1B": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32},
    "160M": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 12},
    "tiny": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4},
    "tiniest": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4},
}
"""Those of Llama 3.1 8B and Llama 3.2 1B, with an output embedding of their own, and smaller ones."""


@dataclass(frozen=True)
class Plan:
    """The sizes of a run.

    Attributes:
        drafters: The shape of the draft model of each target.
        vocab: Number of tokens of all models.
        draft_vocab: Of the EAGLE-3 heads.
        cells: Context and batch of what is measured, the most telling first.
        gamma: Tokens drafted in a step.
        tokens: New tokens of each text.
        rounds: Measured texts after one that warms up.
        soak: Seconds of the soak.
        few: Whether a few tests stand for all.
    """

    drafters: dict[str, str]
    vocab: int
    draft_vocab: int
    cells: tuple[tuple[int, int], ...]
    gamma: int = 4
    tokens: int = 48
    rounds: int = 2
    soak: float = 120.0
    few: bool = False


FULL = Plan(
    drafters={"8B": "1B", "1B": "160M"},
    vocab=128_256,
    draft_vocab=32_000,
    cells=((128, 1), (4096, 1), (128, 16), (4096, 4), (128, 4), (4096, 16)),
)
TINY = Plan(
    drafters={"tiny": "tiniest"},
    vocab=512,
    draft_vocab=128,
    cells=((110, 1), (110, 2)),
    tokens=12,
    rounds=1,
    soak=2.0,
    few=True,
)


@dataclass(frozen=True)
class Run:
    """What measurements need to know.

    Attributes:
        command: Its name.
        device: For torch.
        asked: As it was asked for: perhaps a simulated one.
        dtype: Of the weights.
        workers: Processes of pytest.
        only: What the names of measurements must have in them.
        outcomes: The file with the outcomes of tests.
        plan: The sizes.
        deadline: When the time is over, by `monotonic`.
        models: Kept from one measurement to the next.
    """

    command: str
    device: str
    asked: str
    dtype: str
    workers: int
    only: str
    outcomes: Path
    plan: Plan
    deadline: float
    models: dict[str, Any] = field(default_factory=dict)

    @property
    def left(self) -> float:
        """Seconds until the time is over."""
        return self.deadline - monotonic()

    @property
    def real(self) -> bool:
        """Whether there is a GPU that is not simulated."""
        return self.asked == "cuda"

    @property
    def modes(self) -> tuple[str, ...]:
        """How specdec runs: `compiled` first, which is what a GPU is for."""
        return ("compiled", "eager")

    def selected(self, jobs: list[Job]) -> list[Job]:
        """Return the measurements that were asked for."""
        return [job for job in jobs if self.only in " ".join(map(str, job[0].values()))]

    def kept(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what was made before under a name, or make it."""
        if name not in self.models:
            self.models[name] = make()
        return self.models[name]

    def model(self, shape: str, agreement: float = 1.0, mode: str = "eager") -> LoadedModel:
        """Return a model of a shape; those of both modes share their weights."""
        name = f"{shape} {agreement}"
        if mode == "eager":
            return self.kept(name, lambda: random_model(self, shape, agreement))
        return self.kept(f"{name} {mode}", lambda: compiled(self.model(shape, agreement)))

    def forget(self) -> None:
        """Free all models."""
        self.models.clear()
        gc.collect()
        if self.device.startswith("cuda"):
            torch.cuda.empty_cache()


def compiled(loaded: LoadedModel) -> LoadedModel:
    """Return a compiled model.

    Raises:
        RuntimeError: It was not compiled; the warning says why.
    """
    made = compile_model(loaded)
    if made.passes is None:
        raise RuntimeError("it was not compiled: see `warnings`")
    return made


# --- models that agree by design -----------------------------------------------------------------------------

CYCLE = 97
"""After token t comes t + 1 modulo this, whatever was before it: longer than texts, shorter than prompts."""
ACCEPTANCE = 0.8
"""The share of tokens of a cycle after which a draft model says what the target says."""
SURE = 25.0
"""The logit of the token that comes next; those of others are small."""


def random_model(run: Run, shape: str, agreement: float) -> LoadedModel:
    """Return a model with random weights that knows which token comes next from the last one.

    Its layers do the work of any others and change the hidden state by a thousandth. So what follows is decided by
    the embeddings: alike in models of all sizes, but after the share of tokens in which a draft model is wrong.
    """
    sizes = SHAPES[shape]
    config = LlamaConfig(
        **sizes,
        vocab_size=run.plan.vocab,
        num_key_value_heads=max(sizes["num_attention_heads"] // 4, 1),
        max_position_embeddings=16_384,
        rope_theta=500_000.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    needed = 2.5 * parameters(config)
    if run.real and needed > torch.cuda.mem_get_info()[0]:
        raise LeftOutError(f"{shape} takes {needed / 1e9:.0f} GB")
    with torch.device(run.device), torch.inference_mode():
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, run.dtype))
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.mul_(1e-3)
        decide_by_last_token(model, agreement)
    return wrap_model(model, name=shape)


def parameters(config: LlamaConfig) -> int:
    """Return the number of weights of a Llama."""
    size = config.hidden_size
    layer = size * (2 * size + size // 2 + 3 * config.intermediate_size)
    return config.num_hidden_layers * layer + 2 * config.vocab_size * size


def decide_by_last_token(model: Any, agreement: float) -> None:
    """Write embeddings with which token t + 1 follows t, or t + 2 after some tokens."""
    embeddings, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(CYCLE, embeddings.shape[1], generator=generator, device="cpu").to(embeddings)
    embeddings.copy_(states[torch.arange(len(embeddings), device=states.device) % CYCLE])
    head.mul_(0.1)
    head[:CYCLE] = 0
    wrong = torch.randperm(CYCLE, generator=generator, device="cpu")[: round((1 - agreement) * CYCLE)].tolist()
    for token in range(CYCLE):
        following = (token + (2 if token in wrong else 1)) % CYCLE
        head[following] += states[token] * (SURE / states.shape[1])


@cache
def prompts(context: int, rows: int) -> list[list[int]]:
    """Return prompts that go through the cycle, with tokens in it that are not followed by the right one."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.rand(rows, context, generator=generator).tolist()
    made = []
    for row in range(rows):
        walk = [(7 * row + place) % CYCLE for place in range(context)]
        wrong = [share > ACCEPTANCE for share in noise[row]]
        made.append([(token * 5 + 3) % CYCLE if odd else token for token, odd in zip(walk, wrong, strict=True)])
    return made
