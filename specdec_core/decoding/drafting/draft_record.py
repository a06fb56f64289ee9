"""The record of one step's draft: its tokens, and the q of each, combined into one form for the proposal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from specdec_core.interface import Dense, PointMass, Proposal, Sparse
from specdec_core.interface.proposal import Distribution
from specdec_core.models.device import moved, uploaded
from specdec_core.sampling.candidates import TemperedCandidates

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class _Certain:
    """The tokens at this position were certain."""


@dataclass(frozen=True)
class _Written:
    """The q at this position is in the buffer."""


# Rows that drew no token at a position have None.
_Source: TypeAlias = "_Certain | _Written | list[TemperedCandidates | None]"


class DraftRecord:
    """The tokens of a step, one per row and position, with the q that each was drawn from.

    Args:
        batch_size: B.
        max_gamma: Maximum number of positions.
        vocab_size: V.
        device: Device of the proposal.
    """

    def __init__(self, batch_size: int, max_gamma: int, vocab_size: int, device: torch.device) -> None:
        self._batch = batch_size
        self._shape = (batch_size, max_gamma, vocab_size)
        self.device = device
        self._buffer: Tensor | None = None
        self._columns = torch.zeros(batch_size, max_gamma, dtype=torch.long, device=device)  # of trees
        self._beside: DraftRecord | None = None
        self.clear()

    def clear(self) -> None:
        """Discard the record; the buffer for dense q is reused."""
        self._tokens: list[list[int] | Tensor] = []  # of each position
        self._sources: list[_Source] = []
        self._extension: list[list[int]] = []
        self._extended_q = False
        self._line: tuple[Tensor, Distribution] | None = None

    @property
    def extended(self) -> bool:
        """Whether tokens came by `extend`, any number of them per row."""
        return bool(self._extension)

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def buffer(self) -> Tensor:
        """Buffer for dense q, `[B, max_gamma, V]` float32, allocated when it is first needed.

        The q of one position are beside each other in memory: a GPU writes them without a copy.
        """
        if self._buffer is None:
            batch, width, vocab = self._shape
            by_position = torch.zeros(width, batch, vocab, dtype=torch.float32, device=self.device)
            self._buffer = by_position.transpose(0, 1)
        return self._buffer

    def on(self, device: torch.device) -> DraftRecord:
        """Return a record on a device for what is drawn there: this one, or another that is made once."""
        if device.type == self.device.type:
            return self
        if self._beside is None:
            self._beside = DraftRecord(*self._shape, device)
        return self._beside

    def next_q(self) -> Tensor:
        """Return the buffer for the q of the next position, `[B, V]` float32."""
        return self.buffer[:, len(self)]

    def add_written(self, tokens: Tensor) -> None:
        """Record a position whose q was written to `next_q()`. Nobody else may change the tokens."""
        self._add(tokens, _Written())

    def add_certain(self, tokens: Tensor | list[int]) -> None:
        """Record a position whose tokens `[B]` were certain; on a GPU, as the drafter leaves them."""
        self._add(tokens, _Certain())

    def add_candidates(self, tokens: list[int], rows: list[TemperedCandidates | None]) -> None:
        """Record a position drawn from candidates; None in rows that drew nothing."""
        self._add(tokens, rows)

    def add_line(self, tokens: Tensor, q: Distribution) -> None:
        """Record all tokens `[B, K]`, which stay where they are, as does q. Nothing is added to them."""
        self._line = tokens, q
        self._sources = [_Written()] * tokens.shape[1]

    def extend(self, rows: Sequence[Sequence[int]], q: Tensor | None) -> None:
        """Record further tokens of each row, any number of them. Cannot be combined with the `add_` methods.

        Args:
            rows: B sequences of tokens.
            q: `[B, K, V]`, the distribution of each, K at least the longest row; None where they were certain.
        """
        if not self._extension:
            self._extension = [[] for _ in range(self._batch)]
        for index, (had, new) in enumerate(zip(self._extension, rows, strict=True)):
            if q is not None:
                self.buffer[index, len(had) : len(had) + len(new)] = q[index, : len(new)]
            had.extend(new)
        self._extended_q = self._extended_q or q is not None

    def _add(self, tokens: Tensor | list[int], source: _Source) -> None:
        if isinstance(tokens, Tensor) and tokens.device.type == "cpu":
            tokens = tokens.tolist()
        self._tokens.append(tokens)
        self._sources.append(source)

    def columns(self, count: int) -> Tensor:
        """Return the first columns of tokens, `[B, count]` int64, in memory that the next step overwrites."""
        return self._columns[:, :count]

    def write_columns(self, first: int, tokens: Tensor) -> None:
        """Write the tokens `[B, M]` of the columns from `first` on: nodes of a tree."""
        self._columns[:, first : first + tokens.shape[1]] = tokens

    def write_q(self, columns: Tensor, q: Tensor) -> None:
        """Write the q of the tokens in some columns `[C]`, `[B, C, V]`."""
        self.buffer[:, columns] = q

    def tokens(self) -> Tensor:
        """Return all tokens, `[B, K]` int64."""
        if self._line is not None:
            return self._line[0]
        if self._extension:
            return moved(Proposal.from_rows(self._extension).tokens, self.device)
        if not self._tokens:
            return self._columns[:, :0]
        if all(isinstance(tokens, list) for tokens in self._tokens):
            return uploaded(np.array(self._tokens, dtype=np.int64).T, self.device)
        return torch.stack([self._at(number) for number in range(len(self))], dim=1)

    def _at(self, number: int) -> Tensor:
        """Return the tokens of a position, `[B]`."""
        tokens = self._tokens[number]
        return moved(tokens, self.device) if isinstance(tokens, Tensor) else uploaded(tokens, self.device)

    def rows(self) -> list[list[int]]:
        """Return the tokens of each row."""
        rows: list[list[int]] = self.tokens().tolist()
        return rows

    def q(self) -> Distribution:
        """Return q of all positions in the cheapest form, in memory that the next step overwrites."""
        sources = self._sources
        if self._line is not None:
            return self._line[1]
        if self._extended_q:
            return Dense(self.buffer[:, : max(map(len, self._extension))])
        if all(isinstance(source, _Certain) for source in sources):
            return PointMass()
        candidates = [source for source in sources if isinstance(source, list)]
        if len(candidates) == len(sources):
            widest = max(len(row.ids) for source in candidates for row in source if row is not None)
            if 3 * widest <= self._shape[2]:  # an int64 and a float32 for each, against V of float32
                return self._sparse(candidates, widest)
            return Dense(uploaded(np.stack(list(map(self._dense, candidates)), axis=1), self.device))
        for number, source in enumerate(sources):
            self._write(number, source)
        return Dense(self.buffer[:, : len(sources)])

    def _sparse(self, sources: Sequence[list[TemperedCandidates | None]], widest: int) -> Sparse:
        """Return the q of positions that were all drawn from candidates, at most `widest` of them."""
        shape = self._batch, len(sources), widest
        ids, probabilities = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.float32)
        for number, source in enumerate(sources):
            for index, row in enumerate(source):
                if row is not None:
                    count = len(row.ids)
                    ids[index, number, :count], ids[index, number, count:] = row.ids, row.ids[0]
                    probabilities[index, number, :count] = row.probabilities
        return Sparse(uploaded(ids, self.device), uploaded(probabilities, self.device))

    def _write(self, number: int, source: _Source) -> None:
        """Write the q of a position to the buffer, unless it is there."""
        if isinstance(source, _Certain):
            self.buffer[:, number].zero_().scatter_(1, self._at(number)[:, None], 1.0)
        elif isinstance(source, list):
            self.buffer[:, number].copy_(uploaded(self._dense(source), self.device))

    def _dense(self, source: list[TemperedCandidates | None]) -> NDArray[np.float32]:
        """Return the q of a position that was drawn from candidates, `[B, V]`."""
        written = np.zeros((self._batch, self._shape[2]), dtype=np.float32)
        for out, row in zip(written, source, strict=True):
            if row is not None:
                out[row.ids] = row.probabilities
        return written
