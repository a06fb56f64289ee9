"""The result of decoding: tokens, text, metrics and plugin failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from specdec_core.decoding.counts import Metrics, RequestMetrics
from specdec_core.decoding.guard import PluginFailure
from specdec_core.decoding.rows import FinishReason
from specdec_core.interface.errors import ArgumentError
from specdec_core.interface.outcome import TokenOrigin


@dataclass(frozen=True, repr=False)
class Generation:
    """One finished sequence.

    Attributes:
        prompt: Token ids of the prompt (for encoder-decoder targets, of the source).
        tokens: The new token ids.
        text: The new tokens decoded, or None without a tokenizer.
        finish_reason: Why it ended.
        origins: Where each new token comes from.
        tokenizer: The target's tokenizer, which spells the tokens in a notebook; None without one.
        score: With beams, the log probability of the new tokens over their number to the power of the length
            penalty (`sequences_scores` of transformers); else None.
        metrics: Its counts, under vLLM's names; None with beams, where one draft serves all beams of a prompt.
        seconds: Wall time from the start of its batch to its last token; None with beams, which end together.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str | None
    finish_reason: FinishReason
    # Two results are equal if their tokens are, however these were found.
    origins: tuple[TokenOrigin, ...] = field(default=(), compare=False)
    tokenizer: Any = field(default=None, compare=False)
    score: float | None = field(default=None, compare=False)
    metrics: RequestMetrics | None = field(default=None, compare=False)
    seconds: float | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        shown = f"tokens={self.tokens}" if self.text is None else f"text={self.text!r}"
        return f"<Generation: {len(self.tokens)} tokens, {shown}, finish_reason={self.finish_reason!r}>"

    def __str__(self) -> str:
        return " ".join(map(str, self.tokens)) if self.text is None else self.text

    def _repr_html_(self) -> str:
        from specdec_core.decoding.notebook import results_html

        return results_html([self])


def generation(prompt: Sequence[int], tokens: Sequence[int], reason: FinishReason, tokenizer: Any) -> Generation:
    """Return a finished sequence, with its text if there is a tokenizer."""
    text = None if tokenizer is None else tokenizer.decode(tuple(tokens), skip_special_tokens=True)
    return Generation(tuple(prompt), tuple(tokens), text, reason, tokenizer=tokenizer)


@dataclass(frozen=True, repr=False)
class BatchResult(Sequence[Generation]):
    """The result of one call of `Decoder.generate`: a sequence of `Generation`, in the order of the prompts.

    With beams, the `num_return_sequences` best of each prompt follow each other.

    Attributes:
        sequences: The finished sequences.
        metrics: Counts and times.
        failures: What plugins did wrong on the way.
        notes: Where plugins were overruled, which is not a failure: for instance that lines were drafted although
            the gamma controller asked for trees.
    """

    sequences: tuple[Generation, ...]
    metrics: Metrics
    failures: tuple[PluginFailure, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str | None:
        """The new text of the only sequence, or None without a tokenizer.

        Raises:
            ArgumentError: There are several sequences.
        """
        return self._only("text").text

    @property
    def tokens(self) -> tuple[int, ...]:
        """The new token ids of the only sequence.

        Raises:
            ArgumentError: There are several sequences.
        """
        return self._only("tokens").tokens

    def __len__(self) -> int:
        return len(self.sequences)

    @overload
    def __getitem__(self, index: int) -> Generation: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Generation, ...]: ...
    def __getitem__(self, index: int | slice) -> Generation | tuple[Generation, ...]:
        return self.sequences[index]

    def __repr__(self) -> str:
        failed = f", {len(self.failures)} plugin failures" if self.failures else ""
        return f"<BatchResult: {len(self)} sequence{'s' * (len(self) != 1)}, {self.metrics}{failed}>"

    def __str__(self) -> str:
        texts = [str(one) if len(self) == 1 else f"[{index}] {one}" for index, one in enumerate(self)]
        return "\n".join([*texts, "", str(self.metrics), *map(str, self.failures)])

    def _repr_html_(self) -> str:
        from specdec_core.decoding.notebook import results_html

        return results_html(self.sequences, [str(self.metrics)], [*map(str, self.failures)])

    def _only(self, name: str) -> Generation:
        if len(self) != 1:
            raise ArgumentError(
                f"this result has {len(self)} sequences, so it has no single {name}; index it: result[0].{name}, "
                f"or [one.{name} for one in result]."
            )
        return self.sequences[0]
