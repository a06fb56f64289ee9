"""The target's cache, kept from one batch to the next: what its prompts share is not read again."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_core.interface.outcome import common_prefix
from specdec_core.models.loaded import LoadedModel
from specdec_core.models.run.model_session import ModelSession


class PrefixCache:
    """Keys and values that outlive a call of `Decoder.generate`, for prompts that begin like earlier texts.

    Each prompt of the next call continues the text of the last one with which it shares most tokens: its prompt,
    or what was generated. Only the tokens after those are read. A call that fails, or a stream that is left early,
    leaves nothing to continue. One call uses a cache at a time. It takes the memory of the last batch until it is
    closed or freed.

    Attributes:
        reused: For each prompt of the last call, the number of its tokens that were not read again.
    """

    def __init__(self) -> None:
        self.reused: tuple[int, ...] = ()
        self._session: ModelSession | None = None
        self._layout: tuple[LoadedModel, int, tuple[int, ...], bool] | None = None
        self._texts: list[list[int]] = []

    def open(
        self,
        model: LoadedModel,
        prompts: Sequence[Sequence[int]],
        capacity: int,
        *,
        vocab_size: int,
        hidden_layers: Sequence[int],
    ) -> ModelSession:
        """Return the session of a batch, in which the beginnings of the prompts may be cached.

        The caller leaves it open, and calls `hold` when the batch has ended.

        Args:
            model: The model, decoder-only.
            prompts: The tokens of each row.
            capacity: Maximum number of tokens of a row; see `ModelSession`.
            vocab_size: V.
            hidden_layers: Layers whose outputs are kept; see `ModelSession`.
        """
        texts, self._texts = self._texts, []  # nothing is known of the rows until the batch has ended
        # Past the rotary switch, keys have other frequencies.
        layout = model, vocab_size, tuple(hidden_layers), model.begins_long(len(prompts[0]))
        if self._session is None or not texts or not _same(layout, self._layout):
            self.close()
            self._layout = layout
            self._session = ModelSession(
                model, len(prompts), capacity, vocab_size=vocab_size, hidden_layers=hidden_layers
            )
            self.reused = (0,) * len(prompts)
            return self._session
        found = [_longest(prompt, texts, number) for number, prompt in enumerate(prompts)]
        self._session.resume([row for row, _ in found], [length for _, length in found], capacity)
        self.reused = tuple(self._session.lengths)
        return self._session

    def hold(self, texts: Sequence[Sequence[int]]) -> None:
        """Keep what the session has read of the texts of its rows."""
        assert self._session is not None, "the cache was not opened"
        self._texts = [list(text[:read]) for text, read in zip(texts, self._session.lengths, strict=True)]

    def close(self) -> None:
        """Free the memory; the next call reads whole prompts."""
        session, self._session, self._texts = self._session, None, []
        if session is not None:
            session.close()


def _same(layout: tuple[LoadedModel, int, tuple[int, ...], bool], other: object) -> bool:
    # Models are compared as objects: their fields hold weights.
    return isinstance(other, tuple) and layout[0] is other[0] and layout[1:] == other[1:]


def _longest(prompt: Sequence[int], texts: Sequence[Sequence[int]], number: int) -> tuple[int, int]:
    """Return the text that a prompt continues furthest, its own one among equals, and how far."""
    # The last token of the prompt is read for its logits.
    lengths = [common_prefix(prompt[:-1], text) for text in texts]
    row = max(range(len(texts)), key=lambda row: (lengths[row], row == number))
    return row, lengths[row]
