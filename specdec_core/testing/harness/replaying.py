"""Replay and live decoding of one drafter: the accepted tokens, and those that a replay expects."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import AcceptanceRule, Drafter
from specdec_core.interface.controllers import FixedGamma, FixedGammaConfig
from specdec_core.interface.settings import GenerationSettings, SamplingSettings, TargetConfig
from specdec_core.models import LoadedModel
from specdec_core.offline.record.format import (
    PartHeader,
    Record,
    RecordedPrompts,
    RecordedText,
    RecordHeader,
    RecordPart,
)
from specdec_core.offline.replay.drafter_replay import DrafterReplay
from specdec_core.offline.replay.replayed_metrics import TextAcceptance, expected_counts
from specdec_core.testing.harness.enumeration import adjusted
from specdec_core.testing.harness.tiny_target import uncached_logits

COUNTS = ("target calls", "accepted draft tokens", "draft tokens")


def memory_record(
    target: LoadedModel,
    texts: Sequence[RecordedText],
    sampling: SamplingSettings,
    generation: GenerationSettings,
) -> tuple[Record, RecordPart]:
    """Return a record with one part, in memory."""
    prompts = RecordedPrompts(count=1)
    header = PartHeader(sampling=sampling, generation=generation, prompts=prompts, texts=len(texts))
    part = RecordPart(header, tuple(texts))
    whole = RecordHeader(
        target=TargetConfig(model=target.name),
        fingerprint=None,
        tokenizer=None,
        vocab_size=target.vocab_size,
        eos_ids=target.eos_ids,
        start_id=target.start_id,
        max_length=target.max_length(1),
        most_uncached=target.most_uncached,
        parts=(header,),
    )
    return Record(Path("memory"), whole, (part,)), part


def acceptance_along(
    target: LoadedModel,
    drafter: Drafter,
    texts: Sequence[RecordedText],
    sampling: SamplingSettings,
    limit: int,
    **options: Any,
) -> list[TextAcceptance]:
    """Return a drafter's acceptance along texts of up to `limit` tokens. The options are those of a replay."""
    record, part = memory_record(target, texts, sampling, GenerationSettings(max_new_tokens=limit))
    return list(DrafterReplay(record, part, drafter, target=target, **options).acceptance())


def recorded_texts(
    target: LoadedModel,
    prompt: Sequence[int],
    rows: Sequence[Sequence[int]],
    sampling: SamplingSettings,
    limit: int,
    top_k: int = 0,
) -> list[RecordedText]:
    """Return texts of a prompt with the probability of each token, by one forward pass without a cache.

    Args:
        target: The model that generated them.
        prompt: The prompt, or the source with an encoder.
        rows: The tokens of each text.
        sampling: The sampling settings.
        limit: The most tokens of a text.
        top_k: Number of the most probable tokens to keep at each position.
    """
    begin = list(prompt) if target.start_id is None else [target.start_id]
    longest = max(map(len, rows))
    # What follows a token does not change the logits before it.
    padded = [[*begin, *row, *[0] * (longest - len(row))] for row in rows]
    logits = uncached_logits(target, padded, prompt)[:, len(begin) - 1 :]
    known: dict[tuple[int, ...], Tensor] = {}  # short texts begin alike
    texts = []
    for number, (row, scores) in enumerate(zip(rows, logits, strict=True)):
        p_of_each = []
        for i in range(len(row)):
            before = tuple(row[:i])
            if before not in known:
                known[before] = adjusted(scores[i], sampling, [*begin, *before], len(begin)).float()
            p_of_each.append(known[before])
        p, top = torch.stack(p_of_each), torch.stack(p_of_each).topk(top_k)
        reason = "length" if len(row) == limit else "eos" if row[-1] in target.eos_ids else "context"
        texts.append(
            RecordedText(
                prompt=tuple(prompt),
                number=number,
                sample=0,
                tokens=np.array(row),
                probabilities=p.gather(1, torch.tensor(row)[:, None])[:, 0].numpy(),
                finish_reason=reason,  # type: ignore[arg-type]
                top_tokens=top.indices.numpy() if top_k else None,
                top_probabilities=top.values.numpy() if top_k else None,
            )
        )
    return texts


@dataclass(frozen=True, eq=False)
class LiveAndReplayed:
    """Counts of N texts; `COUNTS` names the columns.

    Attributes:
        texts: The texts that were decoded with the drafter.
        live: `[N, 3]`, what was counted.
        replayed: `[N, 3]`, what a replay of the same texts expects.
    """

    texts: Sequence[RecordedText]
    live: NDArray[np.float64]
    replayed: NDArray[np.float64]

    @property
    def certain(self) -> bool:
        """Whether nothing was drawn: what a replay expects is then what happens."""
        return bool((self.replayed == self.replayed.round()).all())

    def farthest(self) -> tuple[float, int]:
        """Return the largest distance of two means in standard errors, and its column.

        Given a text, a count is its expectation and noise of mean 0; there is none where drafts are certain.
        """
        difference = self.live - self.replayed
        mean = np.abs(difference.mean(axis=0))
        error = difference.std(axis=0, ddof=1) / np.sqrt(len(difference))
        if not self.certain:
            # A sample without the rejections of an almost perfect drafter does not show their variance, which is
            # that of a Poisson count.
            error = np.maximum(error, np.sqrt(mean / len(difference)))
        distances = mean / np.maximum(error, 2e-5)  # probabilities are float32
        return float(distances.max()), int(distances.argmax())


def decode_and_replay(
    target: LoadedModel,
    drafter: Drafter,
    sampling: SamplingSettings,
    prompt: Sequence[int],
    *,
    gamma: int,
    max_gamma: int,
    count: int,
    length: int,
    batch: int,
    seed: int = 0,
    draft_sampling: SamplingSettings | None = None,
    rule: AcceptanceRule | None = None,
) -> LiveAndReplayed:
    """Decode texts of a prompt with a drafter, replay it on them, and return the counts of both.

    Args:
        target: The target.
        drafter: The drafter.
        sampling: The target's sampling settings.
        prompt: The prompt, or the source with an encoder.
        gamma: Tokens asked for in each step.
        max_gamma: Tokens asked for in the replay, at least gamma.
        count: Number of texts, rounded up to whole batches.
        length: The most tokens of a text.
        batch: Texts decoded together.
        seed: Seed of the texts.
        draft_sampling: The drafter's own sampling settings.
        rule: The acceptance rule; None for Algorithm 1.
    """
    rows: list[tuple[int, ...]] = []
    live = []
    controller = FixedGamma(FixedGammaConfig(gamma=gamma))
    decoder = Decoder(
        target,
        drafter,
        gamma=controller,
        rule=rule,
        sampling=sampling,
        draft_sampling=draft_sampling,
        strict=True,
    )
    for number in range(-(-count // batch)):
        settings = GenerationSettings(max_new_tokens=length, seed=seed + number)
        for one in decoder.generate([list(prompt)] * batch, settings):
            assert one.metrics is not None
            rows.append(one.tokens)
            live.append((one.metrics.steps, sum(one.metrics.per_step_accepted), sum(one.metrics.per_step_drafted)))
    top_k = target.vocab_size if rule is not None and rule.config.replays_from == "all" else 0
    texts = recorded_texts(target, prompt, rows, sampling, length, top_k)
    options: Any = {"max_gamma": max_gamma, "draft_sampling": draft_sampling, "batch_size": batch}
    acceptance = acceptance_along(target, drafter, texts, sampling, length, **options)
    known = None if sampling.greedy else rule
    counts = expected_counts([one.drafted(gamma, known) for one in acceptance], gamma)
    return LiveAndReplayed(
        texts, np.array(live, dtype=np.float64), np.stack([counts.steps, counts.accepted, counts.drafted], axis=1)
    )
