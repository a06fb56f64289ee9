"""A model while one batch is decoded: forward over what is new, roll back what was refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from specdec_core.errors import ModelError
from specdec_core.inference import inference_only
from specdec_core.models.cache import SlotCache, WritePlan
from specdec_core.models.family import FULL, SLIDING
from specdec_core.models.loaded import LoadedModel
from specdec_core.models.placing import Placing, placing_of


@dataclass(frozen=True)
class Block:
    """The tokens of one forward, laid out so that the verified positions share their columns.

    Row b reads: padding, its committed tokens not cached yet, its draft, padding. The last committed tokens of
    all rows stand in one column, so the logits that judge draft token i are in one column for all rows.

    Attributes:
        tokens: `[B, T]` int64.
        leads: Padding in front of each row.
        counts: Real tokens of each row.
        keep: How many of the last columns need logits.
    """

    tokens: Tensor
    leads: tuple[int, ...]
    counts: tuple[int, ...]
    keep: int


@dataclass(frozen=True)
class _Answer:
    """Logits `[B, T, V']`, and what the output embedding read for them, `[B, T, D]`, where that is kept."""

    logits: Tensor
    hidden: Tensor | None = None

    def last(self, count: int) -> _Answer:
        """Return the last columns; each part may have been trimmed to them already."""
        return self._map(lambda part: part if part.shape[1] == count else part[:, -count:])

    def blank(self, rows: int, columns: int) -> _Answer:
        """Return zeros of this kind."""
        return self._map(lambda part: part.new_zeros(rows, columns, part.shape[2]))

    def write(self, row: int, column: int, answer: _Answer) -> None:
        """Write the answer of one row by itself into a row, from a column on."""
        for place, part in ((self.logits, answer.logits), (self.hidden, answer.hidden)):
            if place is not None and part is not None:
                place[row, column : column + part.shape[1]] = part[0]

    def _map(self, change: Callable[[Tensor], Tensor]) -> _Answer:
        return _Answer(change(self.logits), None if self.hidden is None else change(self.hidden))


class ModelSession:
    """Cached forwards of one batch, with rollback in O(1).

    Args:
        loaded: The model.
        batch_size: B.
        capacity: The most tokens a row will hold at any moment, drafts included.
        sources: The encoder's input ids of each row, for encoder-decoder models.
        vocab_size: V, how many tokens the others know of; the model's own number when None. A model that pads
            its vocabulary otherwise reads tokens it does not know as 0, and gives them no probability.
        keep_hidden: Keep hidden states too.

    Attributes:
        lengths: Tokens cached for each row.
        calls: Forwards made so far (a pass a row counts once).
        hidden: What the output embedding read for the logits of the last forward, `[B, K + 1, D]`; None unless
            kept.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        batch_size: int,
        capacity: int,
        sources: Sequence[Sequence[int]] | None = None,
        *,
        vocab_size: int | None = None,
        keep_hidden: bool = False,
    ) -> None:
        self._loaded = loaded
        self._vocab_size = vocab_size or loaded.vocab_size
        self._features = loaded.features if keep_hidden else None
        self.hidden: Tensor | None = None
        self._family = loaded.family
        self._device = loaded.device
        self.lengths = [0] * batch_size
        self.calls = 0
        self._cache: SlotCache | None = SlotCache(batch_size, capacity)
        self._memory = _EncoderMemory(loaded, sources) if loaded.encoder_decoder else None

    def rollback(self, lengths: Sequence[int]) -> None:
        """Forget all but the first `lengths[b]` tokens of each row b. O(1): nothing is copied."""
        self.lengths = [min(old, new) for old, new in zip(self.lengths, lengths, strict=True)]

    def close(self) -> None:
        """Free the buffers."""
        self._cache = None
        self._memory = None

    @inference_only
    def forward(
        self, fresh: Sequence[Sequence[int]], draft: Tensor | None = None, drafted: Sequence[int] | None = None
    ) -> Tensor:
        """Run the model once over what it has not seen, and cache it.

        Args:
            fresh: For each row its committed tokens that are not cached yet (possibly none).
            draft: `[B, K]` int64, further tokens to follow them; may be on any device.
            drafted: How many of the K count in each row; all of them when None.

        Returns:
            Logits `[B, K + 1, V]`: after the last fresh token and after each draft token. Where no row has a
            fresh token, `[B, K, V]`. What lies beyond a row's own tokens is undefined.
        """
        block = self._lay_out(fresh, draft, drafted)
        self.calls += 1
        if len(set(self.lengths)) == 1 and not any(block.leads) and min(block.counts) > 0:
            plan = WritePlan(slice(None), self.lengths[0], self.lengths[0] + block.tokens.shape[1])
            answer = self._pass(block.tokens, plan, block.keep)
        elif self._family.ragged:
            answer = self._ragged_pass(block)
        else:
            answer = self._pass_a_row(block)
        self.lengths = [old + new for old, new in zip(self.lengths, block.counts, strict=True)]
        self.hidden = answer.hidden
        return self._fitted(answer.logits)

    def _fitted(self, logits: Tensor) -> Tensor:
        """Return logits `[B, K, V]` of the model's own `[B, K, V']`."""
        missing = self._vocab_size - logits.shape[2]
        if missing == 0:
            return logits
        return pad(logits, (0, missing), value=float("-inf")) if missing > 0 else logits[..., :missing]

    def _lay_out(
        self, fresh: Sequence[Sequence[int]], draft: Tensor | None, drafted: Sequence[int] | None
    ) -> Block:
        longest = max(len(row) for row in fresh)
        width = 0 if draft is None else draft.shape[1]
        extra = [width] * len(fresh) if drafted is None else drafted
        counts = tuple(len(row) + more for row, more in zip(fresh, extra, strict=True))
        # A row with neither fresh tokens nor drafts has only padding; its lead must not count as a shift.
        leads = tuple(longest - len(row) for row in fresh)
        if draft is not None:
            draft = self._embeddable(draft.to(self._device, non_blocking=True))
            if not longest:
                return Block(draft, leads, counts, width)
        padded = [[0] * lead + list(row) for lead, row in zip(leads, fresh, strict=True)]
        head = self._embeddable(torch.tensor(padded, dtype=torch.long).to(self._device, non_blocking=True))
        return Block(head if draft is None else torch.cat([head, draft], dim=1), leads, counts, width + 1)

    def _embeddable(self, tokens: Tensor) -> Tensor:
        """Return the tokens, those the model may have no embedding for as 0."""
        known = self._loaded.vocab_size
        return tokens if known >= self._vocab_size else torch.where(tokens < known, tokens, 0)

    def _pass(self, tokens: Tensor, plan: WritePlan, keep: int, **extra: Any) -> _Answer:
        """Run the model once; masks and positions are the library's own unless `extra` brings some."""
        assert self._cache is not None, "the session is closed"
        self._cache.plan = plan
        keywords: dict[str, Any] = {"use_cache": True, **extra}
        if self._family.trims_logits:
            keywords["logits_to_keep"] = keep
        if self._memory is not None:
            keywords |= self._memory.keywords(self._cache, plan.batch)
            keywords["decoder_input_ids"] = tokens
        else:
            keywords["input_ids"] = tokens
            keywords["past_key_values"] = self._cache
        if self._features is None:
            return _Answer(self._loaded.model(**keywords).logits).last(keep)
        with self._features.capture() as seen:
            logits = self._loaded.model(**keywords).logits
        return _Answer(logits, seen[-1]).last(keep)

    def _ragged_pass(self, block: Block) -> _Answer:
        """Run rows at different positions in one forward, with positions, slots and masks of our own."""
        assert self._cache is not None, "the session is closed"
        starts = torch.tensor(
            [[length - lead] for length, lead in zip(self.lengths, block.leads, strict=True)], device=self._device
        )
        ends = torch.tensor(
            [[length + count] for length, count in zip(self.lengths, block.counts, strict=True)],
            device=self._device,
        )
        begins = torch.tensor(self.lengths, device=self._device)[:, None]
        positions = starts + torch.arange(block.tokens.shape[1], device=self._device)
        real = (positions >= begins) & (positions < ends)
        slots = torch.where(real, positions, self._cache.capacity)
        positions = torch.where(real, positions, 0)
        end = max(length + count for length, count in zip(self.lengths, block.counts, strict=True))
        plan = WritePlan(slice(None), min(self.lengths), end, slots)
        masks = self._masks(positions, end)
        if self._memory is None:
            return self._pass(block.tokens, plan, block.keep, position_ids=positions, attention_mask=masks)
        with self._placed(positions, end):
            return self._pass(block.tokens, plan, block.keep, decoder_attention_mask=masks)

    @cached_property
    def _placed(self) -> Placing:
        """How rows of an encoder-decoder model are placed; looked for when they first stand apart."""
        placing = placing_of(self._loaded.model)
        assert placing is not None, "the family says that its rows can be placed"
        return placing

    def _masks(self, positions: Tensor, end: int) -> Tensor | dict[str, Tensor]:
        """Return who sees whom, `[B, 1, T, end]`, or one such mask for each kind of layer."""
        slots = torch.arange(end, device=self._device)
        causal = slots <= positions[:, None, :, None]
        masks = {FULL: causal}
        if self._family.window is not None:
            masks[SLIDING] = causal & (slots > positions[:, None, :, None] - self._family.window)
        masks = {kind: self._as_wanted(mask) for kind, mask in masks.items() if kind in self._family.layer_types}
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _as_wanted(self, mask: Tensor) -> Tensor:
        if not self._family.float_mask:
            return mask
        dtype = self._loaded.model.dtype
        return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)

    def _pass_a_row(self, block: Block) -> _Answer:
        """Run each row by itself: for families whose forward knows only one position for all rows."""
        out: _Answer | None = None
        for row, (lead, count) in enumerate(zip(block.leads, block.counts, strict=True)):
            if count == 0:
                continue
            tokens = block.tokens[row : row + 1, lead : lead + count]
            # Of the kept columns, this row's own tokens fill those from `first` on.
            kept_from = block.tokens.shape[1] - block.keep
            first = max(lead - kept_from, 0)
            keep = lead + count - kept_from - first
            start = self.lengths[row]
            answer = self._pass(tokens, WritePlan(slice(row, row + 1), start, start + count), keep)
            if out is None:
                out = answer.blank(len(block.counts), block.keep)
            out.write(row, first, answer)
        assert out is not None, "a forward without a single token"
        return out


class _EncoderMemory:
    """The encoder's output, computed once, and the cross-attention keys made from it.

    Raises:
        ModelError: A source is longer than the model takes.
    """

    def __init__(self, loaded: LoadedModel, sources: Sequence[Sequence[int]] | None) -> None:
        if sources is None:
            raise ValueError("an encoder-decoder model needs the sources of its batch")
        self._lengths = [len(source) for source in sources]
        width, most = max(self._lengths), loaded.max_positions
        if most is not None and width > most:
            raise ModelError(
                f"{loaded.name} reads sources of at most {most} tokens, and one has {width}; shorten it."
            )
        pad_id = loaded.model.config.get_text_config().pad_token_id or 0
        ids = torch.tensor([[*source, *[pad_id] * (width - len(source))] for source in sources])
        real = torch.arange(width) < torch.tensor(self._lengths)[:, None]
        # Without padding there is no mask: the library would look through it in every step, and wait for it.
        self._mask = None if real.all() else real.long().to(loaded.device)
        with torch.inference_mode():
            output = loaded.model.get_encoder()(input_ids=ids.to(loaded.device), attention_mask=self._mask)
        self._states: Tensor = output.last_hidden_state
        self._keywords: dict[int | None, dict[str, Any]] = {}

    def keywords(self, cache: SlotCache, batch: slice) -> dict[str, Any]:
        """Return what the model's forward needs to attend to the sources of all rows, or to that of one."""
        if batch.start not in self._keywords:
            self._keywords[batch.start] = self._made(cache, batch)
        return self._keywords[batch.start]

    def _made(self, cache: SlotCache, batch: slice) -> dict[str, Any]:
        states, mask = self._states, self._mask
        if batch.start is not None:
            states, mask = states[batch, : self._lengths[batch.start]], None
        return {
            "encoder_outputs": BaseModelOutput(last_hidden_state=states),
            "attention_mask": mask,
            "past_key_values": EncoderDecoderCache(cache, DynamicCache()),
        }
