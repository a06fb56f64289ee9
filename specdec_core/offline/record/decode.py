"""Decoding with the target alone, keeping the probability of each token.

Nothing is computed twice: the acceptance rule of the decoder sees p of every step anyway. What it keeps stays on
the device until the batch has ended, so that decoding waits for the device no more often than without it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec_core.decoding.chat import answers
from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.observers import Observer
from specdec_core.interface import LAST_HIDDEN, AcceptanceResult, Proposal, StepReport
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import LoadedModel, ModelSession
from specdec_core.models.chat_template import Turn
from specdec_core.models.device import inference_only
from specdec_core.offline.record.format import RecordedText
from specdec_core.verification import SpeculativeSampling

HiddenType: TypeAlias = Literal["float32", "float16"]
"""Number formats of stored hidden states. Those of a bfloat16 model are exact in float16 above 6e-5."""
POSITIONS = 128
"""Positions that are read in one forward pass for their hidden states: their logits are `[1, 128, V]`."""


class RecordingRule(SpeculativeSampling):
    """Algorithm 1, which also keeps p of the token that follows; for decoding without drafts.

    Args:
        top_k: Number of most probable tokens to keep.
    """

    def __init__(self, top_k: int = 0) -> None:
        super().__init__()
        self._top_k = top_k
        self._kept: list[tuple[Tensor, Tensor, Tensor]] = []

    def sample(self, proposal: Proposal, p: Tensor, lenience: Tensor | None, uniforms: Tensor) -> AcceptanceResult:
        """Draw the next token from p, and keep its probability."""
        result = super().sample(proposal, p, lenience, uniforms)
        self._keep(p[:, 0].gather(1, result.token[:, None])[:, 0], p[:, 0])
        return result

    def greedy(self, proposal: Proposal, scores: Tensor, lenience: Tensor | None) -> AcceptanceResult:
        """Take the most probable token."""
        result = super().greedy(proposal, scores, lenience)
        # p is one-hot; what a record has to say beyond the argmax are the model's own probabilities.
        self._keep(torch.ones_like(scores[:, 0, 0]), scores[:, 0].softmax(dim=-1) if self._top_k else scores[:, 0])
        return result

    def take(self) -> list[Tensor]:
        """Return what was kept of each step since the last call, on the CPU; there is at least one.

        Returns:
            p of the token, `[B, steps]` float32; the most probable tokens, `[B, steps, k]` int64, and their p.
        """
        kept, self._kept = self._kept, []
        return [torch.stack(one, dim=1).cpu() for one in zip(*kept, strict=True)]

    def _keep(self, own: Tensor, p: Tensor) -> None:
        values, tokens = p.topk(self._top_k)
        self._kept.append((own, tokens, values))


@dataclass(frozen=True)
class TextJob:
    """Conversations that are decoded together: a text for each turn. Most have a single one.

    Attributes:
        turns: Token ids of each prompt, or what is said in each turn.
        numbers: Number of the prompt of each text.
        samples: Number of the texts of each conversation among those of their prompts.
        seeds: Seed of each text.
    """

    turns: tuple[tuple[tuple[int, ...] | Turn, ...], ...]
    numbers: tuple[tuple[int, ...], ...]
    samples: tuple[int, ...]
    seeds: tuple[tuple[int, ...], ...]

    @property
    def texts(self) -> list[tuple[int, int]]:
        """The number and sample of each text."""
        pairs = zip(self.numbers, self.samples, strict=True)
        return [(number, sample) for numbers, sample in pairs for number in numbers]


@dataclass(frozen=True)
class Kept:
    """The values kept for each token besides its probability.

    Attributes:
        hidden: Number format of the hidden state that it was predicted from; None for no hidden states.
        top_k: Number of most probable tokens.
    """

    hidden: HiddenType | None = None
    top_k: int = 0


class _Progress(Observer):
    """Reports which share of the longest possible text is decoded."""

    def __init__(self, advance: Callable[[float], None], longest: int) -> None:
        self._advance, self._longest = advance, longest

    def on_step(self, report: StepReport) -> None:
        self._advance(min(1.0, (report.step + 1) / self._longest))


def record_texts(
    target: LoadedModel,
    job: TextJob,
    sampling: SamplingSettings,
    generation: GenerationSettings,
    kept: Kept = Kept(),
    advance: Callable[[float], None] = lambda _: None,
) -> list[RecordedText]:
    """Decode some prompts together with the target alone.

    Args:
        target: The target.
        job: The prompts and seeds.
        sampling: Sampling settings of the target.
        generation: Length limits.
        kept: What is kept of each token besides its probability.
        advance: Called with the share that is done.

    Returns:
        The texts, by number and sample: those of a live baseline with these seeds. Turns with which their
        conversations outgrow the context are left out.

    Raises:
        SpecdecError: The target cannot decode them.
    """
    rule = RecordingRule(kept.top_k)
    decoder = Decoder(target, sampling=sampling, rule=rule, strict=True)
    watcher = _Progress(advance, generation.max_new_tokens)
    texts: list[RecordedText] = []
    for turn, (going, result) in enumerate(answers(decoder, job.turns, generation, [watcher], seeds=job.seeds)):
        # A conversation that has outgrown the context is not in the batch.
        decoded = [(one, conversation) for conversation, one in zip(going, result, strict=True) if one.tokens]
        if not decoded:
            continue
        p, top_tokens, top_p = (one.numpy() for one in rule.take())
        for row, (one, conversation) in enumerate(decoded):
            length, hidden = len(one.tokens), None
            if kept.hidden is not None:
                hidden = _stored(forced_pass(target, one.prompt, one.tokens).hidden, kept.hidden)
            texts.append(
                RecordedText(
                    prompt=one.prompt,
                    number=job.numbers[conversation][turn],
                    sample=job.samples[conversation],
                    tokens=np.array(one.tokens, np.int64),
                    probabilities=p[row, :length],
                    finish_reason=one.finish_reason,
                    hidden=hidden,
                    top_tokens=top_tokens[row, :length] if kept.top_k else None,
                    top_probabilities=top_p[row, :length] if kept.top_k else None,
                )
            )
    return sorted(texts, key=lambda text: (text.number, text.sample))


@dataclass(frozen=True, eq=False)
class ForcedPass:
    """The hidden states of a target over a text of L tokens.

    Attributes:
        hidden: `[L, D]`, the output embedding's input that each token was predicted from; empty if the target has
            none.
        layers: The outputs of layers at all tokens but the last, prompt included, `[T, D]` each.
    """

    hidden: Tensor
    layers: Mapping[int, Tensor]


@inference_only
def forced_pass(
    target: LoadedModel, prompt: Sequence[int], tokens: Sequence[int], layers: Sequence[int] = ()
) -> ForcedPass:
    """Read a text with the target: what each of its tokens was predicted from, whoever chose it.

    The states are those of decoding token by token, up to rounding.

    Args:
        target: The target.
        prompt: Token ids of the prompt; of the source for an encoder-decoder target.
        tokens: Token ids of the text.
        layers: Layers whose outputs are wanted; see `Drafter.hidden_layers`.
    """
    begin = list(prompt) if target.start_id is None else [target.start_id]
    sources = [list(prompt)] if target.encoder_decoder else None
    session = ModelSession(target, 1, len(begin) + len(tokens), sources, hidden_layers=(*layers, LAST_HIDDEN))
    states = []
    for start in range(0, len(tokens), POSITIONS):
        # The token before each of these positions. The last token of the text is not read: it predicts nothing.
        read = list(tokens[max(start - 1, 0) : min(start + POSITIONS, len(tokens)) - 1])
        uncached, draft = (read[:1], read[1:]) if start else (begin, read)
        session.forward([uncached], torch.tensor([draft], dtype=torch.long) if draft else None)
        if session.hidden is not None:
            states.append(session.hidden[0])
    of_layers = {layer: kept[0].clone() for layer, kept in session.hidden_states.items()}
    session.close()
    return ForcedPass(torch.cat(states) if states else torch.empty(len(tokens), 0), of_layers)


def _stored(hidden: Tensor, dtype: HiddenType) -> NDArray[Any]:
    """Return hidden states in a number format, in float32 where they are too large for float16."""
    values: NDArray[Any] = hidden.float().cpu().numpy()
    largest = float(np.abs(values).max(initial=0))
    return values if largest > float(np.finfo(np.float16).max) else values.astype(dtype)
