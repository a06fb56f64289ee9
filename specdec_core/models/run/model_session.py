"""A model that runs over one batch with a cache: forward passes over new tokens, rollback of rejected ones."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdec_core.interface import LAST_HIDDEN, SessionInfo
from specdec_core.interface.errors import ModelError
from specdec_core.models.device import inference_only, moved, uploaded
from specdec_core.models.fast.attention import rounds_alike
from specdec_core.models.fast.static import WIDEST, Outputs, StaticPasses
from specdec_core.models.fast.static_step import READ, Decision, Line
from specdec_core.models.loaded import LoadedModel
from specdec_core.models.run.cache import SlotCache, WritePlan
from specdec_core.models.run.cached_tree import CachedTree
from specdec_core.models.run.encoder import Encoded, EncoderMemory
from specdec_core.models.run.forward import ModelForward, Output, check_ready
from specdec_core.models.run.placement import Block, Placement
from specdec_core.models.run.prompt_inputs import PromptInputs
from specdec_core.models.run.recurrent import OwnCache, RecurrentCache


class ModelSession:
    """Cached forward passes over one batch, with rollback in O(1).

    Args:
        loaded: The model.
        batch_size: B.
        capacity: Maximum number of tokens that a row holds at any time, including drafts.
        sources: The encoder's input ids of each row, for encoder-decoder models whose encoder reads ids.
        vocab_size: V of the target, if it differs from the model's. Unknown tokens are read as token 0 and get no
            probability.
        encoded: What an encoder gave for the sources, if it has run.
        hidden_layers: Layers whose outputs are kept for all cached tokens; see `Drafter.hidden_layers`. With
            `LAST_HIDDEN`, the states that the output embedding read in the last forward pass are kept in `hidden`.
        snapshots: How many snapshots of a recurrent state are kept, each before a draft that was rolled back, or
            may be.
        prompt: What the first pass reads instead of the ids of the prompts; it drafts nothing.

    Raises:
        ModelError: The model is in training mode or has no weights, a source is longer than it supports, or there
            is none for its encoder.

    Attributes:
        device: Where its input and its logits are.
        lengths: Number of cached tokens of each row, after which the next pass begins. After a rollback, a
            recurrent model has fewer than were left: those up to its last snapshot.
        calls: Number of `forward` and `decide` calls.
        hidden: Hidden states that the output embedding read for the last logits, `[B, K + 1, D]`, or None if not
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
        encoded: Encoded | None = None,
        hidden_layers: Sequence[int] = (),
        snapshots: int = 1,
        prompt: PromptInputs | None = None,
    ) -> None:
        check_ready(loaded)
        self._loaded = loaded
        self._vocab_size = vocab_size or loaded.vocab_size
        layers = [layer for layer in hidden_layers if layer != LAST_HIDDEN]
        self._forward = ModelForward(loaded, keep_hidden=LAST_HIDDEN in hidden_layers, layers=layers)
        self.hidden: Tensor | None = None
        self._family = loaded.family
        self.device = loaded.device
        self.lengths = [0] * batch_size
        self.calls = 0
        captured = loaded.family.ragged and not loaded.family.recurrent and prompt is None
        self._passes = loaded.passes if captured else None
        self._read: list[int] | None = None  # tokens that a rollback left, where fewer are cached
        self._drafting = [False] * batch_size  # rows that have read drafted tokens since the last rollback
        self._cache: SlotCache | None
        if self._family.own_cache:
            self._cache = OwnCache(batch_size, capacity, snapshots)
        elif self._family.recurrent:
            self._cache = RecurrentCache(loaded.model.config, batch_size, capacity, snapshots)
        elif self._passes is None:
            self._cache = SlotCache(batch_size, capacity)
        else:
            self._cache = self._passes.cache(batch_size, capacity, layers)
        self._prompt = prompt
        shift = None if prompt is None else prompt.shift
        self._shift = None if shift is None else moved(shift, self.device)
        self._memory = EncoderMemory(loaded, sources, encoded) if loaded.encoder_decoder else None
        known = self._family.takes_positions and self._memory is None  # a decoder counts its own
        self._tells_positions = known and (self._family.ragged or self._family.recurrent)
        self._tree: CachedTree | None = None
        self._placement = Placement(self.device)
        self._exact = loaded.exact_shapes
        self._apart = captured and self._memory is None and rounds_alike(loaded)

    @classmethod
    def of_batch(cls, loaded: LoadedModel, info: SessionInfo, capacity: int, **more: Any) -> Self:
        """Return a session for the rows of a batch, as drafters know it.

        Args:
            loaded: The model.
            info: The batch.
            capacity: As for `ModelSession`.
            more: Further arguments of `ModelSession`.
        """
        vocab_size, encoded = info.vocab_size, info.encoded
        return cls(loaded, info.batch_size, capacity, info.sources, vocab_size=vocab_size, encoded=encoded, **more)

    @property
    def read(self) -> list[int]:
        """Number of tokens of each row that were read and not rolled back, whose hidden states are known."""
        return self.lengths if self._read is None else self._read

    @property
    def keeps_hidden(self) -> bool:
        """Whether `hidden` has the states of the last forward pass."""
        return self._forward.features is not None

    @property
    def hidden_states(self) -> dict[int, Tensor]:
        """The outputs of each of `hidden_layers` at the cached tokens, `[B, T, D]`, T the longest row's length.

        Columns beyond a row's length are undefined. A view, which the next forward pass changes, and which must
        not be read once the session is closed. Empty before the first.
        """
        return {} if self._cache is None else self._cache.states(max(self.read))

    @property
    def pairs_rows(self) -> bool:
        """Whether rows share a pass only if they read equally many tokens."""
        return len(self.lengths) > 1 and self._family.recurrent and not self._family.own_cache

    @property
    def states(self) -> list[Tensor]:
        """One recurrent state of each kind and shape, in the memory that the next pass reads."""
        return self._cache.examples() if isinstance(self._cache, RecurrentCache) else []

    def rollback(self, lengths: Sequence[int]) -> None:
        """Keep only the first `lengths[b]` tokens of each row b.

        Takes O(1) time: nothing is copied but a recurrent state, which does not grow with the text.
        """
        cache = self._cache
        if isinstance(cache, RecurrentCache):
            pairs = zip(self.lengths, lengths, strict=True)
            self._read = list(map(min, self.read, lengths))
            self.lengths = [cache.settle(row, length, wanted) for row, (length, wanted) in enumerate(pairs)]
            self._drafting = [False] * len(self.lengths)
        else:
            self.lengths = list(map(min, self.lengths, lengths))
        self._tree = None

    def too_many(self, uncached: int) -> bool:
        """Return whether so many uncached tokens of a row are to be read without a draft behind them.

        A recurrent model reads them again after each rejection, and caches them with a pass that drafts nothing.
        So does the first pass of `prompt`.
        """
        most = self._loaded.most_uncached
        return self._prompt is not None or (most is not None and uncached > most)

    @inference_only
    def resume(self, rows: Sequence[int], lengths: Sequence[int], capacity: int) -> None:
        """Continue with some of the rows, rolled back, as another batch.

        Args:
            rows: The row that each row of the new batch continues; one may be continued by several.
            lengths: Number of tokens that each row of the new batch keeps.
            capacity: Maximum number of tokens that a row of it holds at any time.
        """
        assert self._cache is not None, "the session is closed"
        assert self._memory is None, "the rows of an encoder-decoder model have other sources"
        self._cache.resume(rows, capacity)
        self._read = None if self._read is None else [self._read[row] for row in rows]
        self.lengths = [self.lengths[row] for row in rows]
        self.rollback(lengths)

    @inference_only
    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep one path of the tree that was read last; its nodes become the next tokens of their row.

        Their keys and values are moved together. Nothing else is copied.

        Args:
            paths: For each row, the numbers of its nodes from the root on. Nodes that were not read are left out.
        """
        tree, self._tree = self._tree, None
        if tree is None:
            return
        assert self._cache is not None, "the session is closed"
        paths = [[node for node in path if node < count] for path, count in zip(paths, tree.counts, strict=True)]
        if any(list(path) != list(range(len(path))) for path in paths):
            self._cache.move(*tree.slots(paths, self._cache.capacity))
        pairs = zip(self.lengths, tree.base, paths, strict=True)
        self.lengths = [min(length, base + len(path)) for length, base, path in pairs]

    @inference_only
    def prune(self, nodes: Sequence[Sequence[int]], trunks: Sequence[int]) -> None:
        """Keep some nodes of the tree that was read, and numbered in the order given; drop the others.

        Args:
            nodes: For each row, the nodes that stay, in ascending order, with all their ancestors.
            trunks: For each row, how many of them at the beginning are a line from which all others descend. They
                become tokens of the row, and numbers begin after them.
        """
        if self._tree is None:
            return
        assert self._cache is not None, "the session is closed"
        moves = self._tree.moves(nodes, self._cache.capacity)
        if moves is not None:
            self._cache.move(*moves)
        self._tree = self._tree.pruned(nodes, trunks)
        self.lengths = list(map(operator.add, self._tree.base, self._tree.counts))

    def close(self) -> None:
        """Free the buffers."""
        if self._passes is not None and self._cache is not None:
            self._passes.give_back(self._cache)
        self._cache = None
        self._memory = None

    @property
    def decides(self) -> bool:
        """Whether `decide` captures decisions together with passes, and `draft` lines."""
        return self._passes is not None and self._passes.decides and self._passes.failed is None

    @property
    def drafts(self) -> bool:
        """Whether `draft` draws all tokens of a line."""
        return self.decides or self.device.type == "cpu"

    @inference_only
    def decide(
        self, uncached: Sequence[Sequence[int]], draft: Tensor, draft_lengths: Sequence[int], decision: Decision
    ) -> tuple[Tensor, Outputs] | None:
        """Run `forward` captured with a decision from its logits.

        Returns:
            Logits as of `forward`, and what was decided, in memory that the next pass overwrites. None where
            no pass was captured, as for rows with several uncached tokens: nothing was run.
        """
        width = 1 + draft.shape[1]
        several = any(len(row) > 1 for row in uncached)
        if not self.decides or width > WIDEST or several or self._vocab_size != self._loaded.vocab_size:
            return None
        cache, passes, layers = self._cache, self._passes, self._forward.layers
        assert passes is not None
        assert cache is not None, "the session is closed"
        last = [row[0] if row else 0 for row in uncached]
        counts = [len(row) + length for row, length in zip(uncached, draft_lengths, strict=True)]
        rows = (self.lengths, [1 - len(row) for row in uncached], counts)
        found = passes.attempt(cache, layers, lambda: passes.decide(cache, layers, last, draft, rows, decision))
        if found is None:
            return None
        output = found[0].map(lambda part: part[:, :width])
        self.calls += 1
        self.lengths = list(map(operator.add, self.lengths, counts))
        self.hidden = None if self._forward.features is None else output.hidden
        return output.logits, found[1]

    @inference_only
    def draft(self, uncached: Sequence[Sequence[int]], line: Line) -> Outputs | None:
        """Read the uncached tokens and draft a line after them.

        On a GPU that is a captured function. Elsewhere, passes follow each other with nothing but draws between.
        The last token of each row's draft is not read.

        Args:
            uncached: As for `forward`; none in rows that draft nothing.
            line: What is drawn.

        Returns:
            What the line's sampler returned, in memory that the next pass overwrites; the line may have more
            columns. Nothing if `line.draw` drew it. None where it cannot be captured, as for more than `READ`
            uncached tokens: nothing was run.
        """
        if not self.decides:
            return self._draft_pass_by_pass(uncached, line)
        fits = all(len(row) <= READ for row in uncached) and max(line.lengths) < WIDEST
        same = self._vocab_size == self._loaded.vocab_size and self.device == line.device
        if not fits or not same or self._memory is not None:
            return None
        cache, passes, layers = self._cache, self._passes, self._forward.layers
        assert passes is not None
        assert cache is not None, "the session is closed"
        counts = list(map(len, uncached))
        padding = [READ - count for count in counts]
        tokens = [[*[0] * missing, *row] for missing, row in zip(padding, uncached, strict=True)]
        rows = (self.lengths, padding, counts)
        made = passes.attempt(cache, layers, lambda: passes.draft(cache, layers, tokens, rows, line))
        if made is not None:
            self.calls += max(line.lengths)
            read = [count + max(length - 1, 0) for count, length in zip(counts, line.lengths, strict=True)]
            self.lengths = list(map(operator.add, self.lengths, read))
        return made

    def _draft_pass_by_pass(self, uncached: Sequence[Sequence[int]], line: Line) -> Outputs:
        logits, read = self.forward(uncached), max(line.lengths) - 1
        start, rows = self.lengths[0], range(len(uncached))
        plain = self._passes is None and self._exact is None and not isinstance(self._cache, RecurrentCache)
        # Passes of rows that are at the same position differ in nothing else.
        alike = plain and len(set(self.lengths)) == len(set(line.lengths)) == 1
        known = self._positions(WritePlan(slice(None), start, start + read), rows) if alike else {}
        columns = [(name, torch.split(each, 1, dim=-1)) for name, each in known.items()]
        for at in range(read):
            tokens = self._replace_unknown(line.draw(logits.select(1, -1)).unsqueeze(1))
            counts = tuple([int(length > at + 1) for length in line.lengths])
            if alike:
                plan = WritePlan(slice(None), start + at, start + at + 1)
                logits = self._noted(
                    self._run(tokens, plan, 1, **{name: each[at] for name, each in columns}), counts
                )
            else:
                logits = self._pass(Block(tokens, (0,) * len(counts), counts, 1, 1))
        line.draw(logits.select(1, -1))
        return ()

    @inference_only
    def forward(
        self,
        uncached: Sequence[Sequence[int]],
        draft: Tensor | None = None,
        draft_lengths: Sequence[int] | None = None,
        parents: Tensor | None = None,
        states: Tensor | None = None,
    ) -> Tensor:
        """Run the model once over new tokens and cache them.

        Args:
            uncached: For each row, its committed tokens that are not cached yet (possibly none).
            draft: `[B, K]` int64, draft tokens that follow them, on any device.
            draft_lengths: Length of each row's draft; K if None.
            parents: `[B, K]` int64 for draft tokens that are nodes of a tree: the number of each one's parent, -1
                for those that follow the committed tokens. Until the next `keep` or `rollback`, passes without
                uncached tokens add nodes to the tree, and numbers go on (`prune` drops some). Requires
                `Family.trees`.
            states: `[B, T, D]`, for a draft head that reads hidden states of the target: one beside each token,
                rows with fewer tokens padded on the left. Requires `Family.ragged`.

        Returns:
            Logits `[B, K + 1, V]`: after the last uncached token and after each draft token. If no row has
            uncached tokens, `[B, K, V]`. Logits beyond a row's own draft are undefined.
        """
        if self._exact is not None:
            uncached = self._read_all_but_last(uncached)
        block = self._align(uncached, draft, draft_lengths)
        if states is not None:
            assert self._family.ragged, "the model takes no states"
            block = block._replace(inputs={"states": states})
        if self._apart and block.draft and block.tokens.shape[1] > WIDEST:
            block = block._replace(inputs={**block.inputs, "drafted": block.draft})
        tree = None if parents is None or not block.draft else self._grown_tree(uncached, block, parents)
        return self._pass(block, tree)

    def _pass(self, block: Block, tree: tuple[CachedTree, Tensor] | None = None) -> Tensor:
        """Run the model over a block; return its logits, as `forward` does."""
        if self._exact is not None:
            block = self._widened(block, self._exact)
        if self._prompt is not None:
            assert not block.draft, "the first pass drafts nothing"
            output = self._run_first(self._prompt, max(block.counts))
        elif tree is not None:
            output = self._run_ragged(block, tree)
        elif self._passes is not None and (replayed := self._replay(self._passes, block)) is not None:
            output = replayed
        elif isinstance(self._cache, RecurrentCache):
            output = self._run_with_states(self._cache, block)
        elif not any(block.padding) and min(block.counts) > 0 and len(set(self.lengths)) == 1:
            plan = WritePlan(slice(None), self.lengths[0], self.lengths[0] + block.tokens.shape[1])
            output = self._run(
                block.tokens, plan, block.keep, **self._positions(plan, range(len(self.lengths))), **block.inputs
            )
        elif self._family.ragged:
            output = self._run_ragged(block)
        else:
            output = self._run_in_groups(block)
        return self._noted(output, block.counts)

    def _noted(self, output: Output, counts: Sequence[int]) -> Tensor:
        """Take note of the tokens that each row has read; return the logits, padded or trimmed to `[B, K, V]`."""
        self.calls += 1
        self.lengths = list(map(operator.add, self.lengths, counts))
        if self._read is not None:
            self._read = list(map(max, self._read, self.lengths))
        logits, self.hidden = output
        missing = self._vocab_size - logits.shape[2]
        if missing == 0:
            return logits
        return pad(logits, (0, missing), value=float("-inf")) if missing > 0 else logits[..., :missing]

    def _align(
        self, uncached: Sequence[Sequence[int]], draft: Tensor | None, draft_lengths: Sequence[int] | None
    ) -> Block:
        heads = list(map(len, uncached))
        longest = max(heads)
        width = 0 if draft is None else draft.shape[1]
        counts = tuple(map(operator.add, heads, [width] * len(heads) if draft_lengths is None else draft_lengths))
        padding = tuple([longest - head for head in heads])
        if draft is not None:
            draft = self._replace_unknown(moved(draft, self.device))
            if not longest:
                return Block(draft, padding, counts, width, width)
        padded = [[0] * left + list(row) for left, row in zip(padding, uncached, strict=True)]
        head = self._replace_unknown(uploaded(padded, self.device, torch.long))
        tokens = head if draft is None else torch.cat([head, draft], dim=1)
        return Block(tokens, padding, counts, width + 1, width)

    def _read_all_but_last(self, uncached: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
        """Cache all uncached tokens of each row but the last, in a pass whose shape no draft changes."""
        heads = [row[:-1] for row in uncached]
        if any(heads):
            block = self._align(heads, None, None)
            self._run_ragged(block)
            self.lengths = [old + new for old, new in zip(self.lengths, block.counts, strict=True)]
        return [row[-1:] for row in uncached]

    def _widened(self, block: Block, width: int) -> Block:
        """Return a block of so many columns, padded on the left."""
        missing = width - block.tokens.shape[1]
        if missing < 0:
            raise ModelError(
                f"exact_shapes is {width}, but a step reads {width - missing} tokens: the last committed one and "
                f"the draft. Set exact_shapes: {width - missing} for all runs, or draft less."
            )
        return block._replace(
            tokens=pad(block.tokens, (missing, 0)), padding=tuple(missing + n for n in block.padding)
        )

    def _replace_unknown(self, tokens: Tensor) -> Tensor:
        """Replace tokens outside the model's vocabulary by token 0, since they may have no embedding."""
        known = self._loaded.vocab_size
        return tokens if known >= self._vocab_size else torch.where(tokens < known, tokens, 0)

    def _run(self, tokens: Tensor, plan: WritePlan, keep: int, **inputs: Tensor) -> Output:
        assert self._cache is not None, "the session is closed"
        self._cache.reserve(plan.end)
        return self._forward.run(self._cache, self._memory, tokens, plan, keep, **inputs)

    def _replay(self, passes: StaticPasses, block: Block) -> Output | None:
        """Run a captured pass; return None if there is none for this block."""
        width = block.tokens.shape[1]
        cache, layers = self._cache, self._forward.layers
        if width > WIDEST or block.inputs:
            return None
        assert cache is not None, "the session is closed"
        rows = (self.lengths, block.padding, block.counts)
        output = passes.attempt(cache, layers, lambda: passes.run(cache, self._memory, layers, block.tokens, rows))
        if output is None:
            return None
        hidden = None if self._forward.features is None else output.hidden
        return Output(output.logits, hidden).map(lambda part: part[:, width - block.keep : width])

    def _grown_tree(
        self, uncached: Sequence[Sequence[int]], block: Block, parents: Tensor
    ) -> tuple[CachedTree, Tensor]:
        """Add the draft to the tree; return that, and the numbers of the new nodes `[B, K]`."""
        assert self._family.trees, "the model takes no trees"
        heads = list(map(len, uncached))
        if self._tree is None or any(heads):
            self._tree = CachedTree.empty(list(map(operator.add, self.lengths, heads)), self.device)
        drafted = list(map(operator.sub, block.counts, heads))
        self._tree, nodes = self._tree.extended(moved(parents, self.device), drafted)
        return self._tree, nodes

    def _run_first(self, prompt: PromptInputs, longest: int) -> Output:
        """Run the first pass as plain `generate` does: all rows together, padded on the left."""
        assert self._cache is not None, "the session is closed"
        self._prompt = None
        self._cache.reserve(longest)
        slots = moved(prompt.slots(self._cache.capacity), self.device)
        plan = WritePlan(slice(None), 0, longest, slots, first=True)
        inputs = prompt.first_pass(self._loaded, self._cache)
        del inputs[self._family.cache_argument]  # it is passed on
        return self._run(inputs.pop("input_ids"), plan, 1, **inputs)

    def _positions(self, plan: WritePlan, rows: Sequence[int]) -> dict[str, Tensor]:
        """Return the argument for the positions of rows that start at the same slot, if the model takes it.

        Without it some count from 0 in each pass, or go on after the images of another call.
        """
        if not self._tells_positions:
            return {}
        positions = self._placement.keys(plan.end, plan.start).expand(len(rows), -1)
        return {"position_ids": self._shifted(positions, rows)}

    def _shifted(self, positions: Tensor, rows: Sequence[int] | None) -> Tensor:
        """Return positions `[B, T]` as the model counts them after its prompt, `[A, B, T]` on several axes."""
        if self._shift is None:
            return positions
        shift = self._shift if rows is None else self._shift[..., list(rows)]
        return (positions + shift[..., None]).clamp(min=0)

    def _run_ragged(
        self, block: Block, grown: tuple[CachedTree, Tensor] | None = None, rows: Sequence[int] | None = None
    ) -> Output:
        """Run rows, or some, at different positions in one pass, with explicit positions, slots and masks."""
        assert self._cache is not None, "the session is closed"
        lengths = self.lengths if rows is None else [self.lengths[row] for row in rows]
        end = max(length + count for length, count in zip(lengths, block.counts, strict=True))
        end = end if self._exact is None else self._cache.maximum
        self._cache.reserve(end)
        keys, trash = self._placement.keys(end), self._cache.capacity
        placed = self._placement.of(lengths, block, end, trash, tree=grown is not None)
        plan = WritePlan(slice(None), min(lengths), end, placed.slots)
        if rows is not None:
            plan = self._plan(rows, *plan[1:4])
        if grown is not None:
            tree, nodes = grown
            positions, visible, keys = tree.places(nodes, end)
            placed.visible[:, -block.draft :] = visible
            placed.positions[:, -block.draft :] = positions * placed.real[:, -block.draft :]
        where = {"positions": placed.positions, "visible": placed.visible, "keys": keys}
        inputs = dict(block.inputs)
        if self._shift is not None:
            inputs["position_ids"] = self._shifted(placed.positions, rows)
        return self._forward.run_ragged(
            self._cache, self._memory, block.tokens, plan, block.keep, **where, **inputs
        )

    def _run_with_states(self, cache: RecurrentCache, block: Block) -> Output:
        """Run rows in groups; keep their states before the first drafted token that they read."""
        head = block.tokens.shape[1] - block.draft
        for row, (count, padding) in enumerate(zip(block.counts, block.padding, strict=True)):
            if count > head - padding and not self._drafting[row]:
                cache.take(row, self.lengths[row])
                self._drafting[row] = True
        return self._run_in_groups(block)

    def _run_in_groups(self, block: Block) -> Output:
        """Run rows without padding: those that read equally many tokens share a pass."""
        out: Output | None = None
        offset = block.tokens.shape[1] - block.keep
        for rows in self._groups(block):
            width = block.counts[rows[0]]
            tokens = torch.stack([block.tokens[row, block.padding[row] :][:width] for row in rows])
            # A row's logits start at column `first` of the last `block.keep` columns.
            first = [max(block.padding[row] - offset, 0) for row in rows]
            keep = [block.padding[row] + width - offset - begun for row, begun in zip(rows, first, strict=True)]
            output = self._run_group(rows, tokens, max(keep))
            if keep == [block.keep] * len(block.counts):
                return output
            if out is None:
                out = output.zeros(len(block.counts), block.keep)
            for number, row in enumerate(rows):
                out.write(row, first[number], output.of_row(number, keep[number]))
        assert out is not None, "a forward pass needs at least one token"
        return out

    def _groups(self, block: Block) -> list[list[int]]:
        """Return the rows that share a pass."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for row, (start, count) in enumerate(zip(self.lengths, block.counts, strict=True)):
            if count:
                # Rows of an encoder have other masks, and a model makes a cache for one.
                alone = (row,) if self._memory is not None or self._family.own_cache else ()
                begun = start > 0 if self._family.ragged else start
                groups.setdefault((count, begun, *alone), []).append(row)
        return list(groups.values())

    def _run_group(self, rows: Sequence[int], tokens: Tensor, keep: int) -> Output:
        """Run some rows over tokens `[G, T]`; return the output of the last columns."""
        (count, width), starts = tokens.shape, {self.lengths[row] for row in rows}
        if len(starts) > 1 or self._family.masks_own_cache:
            output = self._run_ragged(Block(tokens, (0,) * count, (width,) * count, keep, 0), rows=rows)
        else:
            (start,) = starts
            plan = self._plan(rows, start, start + width)
            if plan.rows is not None:
                plan = plan._replace(slots=self._placement.keys(plan.end, start).expand(count, -1))
            output = self._run(tokens, plan, keep, **self._positions(plan, rows))
        if isinstance(self._cache, RecurrentCache):
            self._cache.keep()
        return output

    def _plan(self, rows: Sequence[int], start: int, end: int, slots: Tensor | None = None) -> WritePlan:
        """Return where a pass over some rows writes."""
        if len(rows) == rows[-1] + 1 - rows[0]:
            return WritePlan(slice(rows[0], rows[-1] + 1), start, end, slots)
        return WritePlan(slice(None), start, end, slots, torch.tensor(rows, device=self.device))
