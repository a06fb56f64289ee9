"""Tensor parallelism: sessions of a model whose weights are shared by the processes that torchrun started.

References:
    The layers are sharded by transformers (`DistributedConfig`).
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specdec_core.interface import LAST_HIDDEN
from specdec_core.interface.errors import ModelError
from specdec_core.models.device import inference_only
from specdec_core.models.loaded import LoadedModel
from specdec_core.models.run.encoder import Encoded
from specdec_core.models.run.model_session import ModelSession


def open_session(
    loaded: LoadedModel,
    batch_size: int,
    capacity: int,
    sources: Sequence[Sequence[int]] | None = None,
    *,
    vocab_size: int | None = None,
    hidden_layers: Sequence[int] = (),
    encoded: Encoded | None = None,
) -> ModelSession:
    """Open a session of a model, on all ranks if they share it; see `ModelSession` for arguments and errors."""
    options: dict[str, Any] = {"vocab_size": vocab_size, "hidden_layers": hidden_layers}
    if loaded.share is not None:  # the other ranks run the encoder themselves
        return SharedSession(loaded, batch_size, capacity, sources, **options)
    return ModelSession(loaded, batch_size, capacity, sources, **options, encoded=encoded)


class SharedSession(ModelSession):
    """The session of rank 0: each forward pass is run by all ranks, on the tokens that rank 0 has."""

    def __init__(
        self,
        loaded: LoadedModel,
        batch_size: int,
        capacity: int,
        sources: Sequence[Sequence[int]] | None = None,
        *,
        vocab_size: int | None = None,
        hidden_layers: Sequence[int] = (),
    ) -> None:
        assert set(hidden_layers) <= {LAST_HIDDEN}, "a shared model has no hidden states for drafters"
        assert loaded.share is not None
        self._leader, self._key = loaded.share.leader, loaded.share.leader.key()
        with self._leader.lock:
            self._leader.run(
                "open",
                self._key,
                loaded.share.model,
                {"ragged": loaded.family.ragged, "trees": loaded.family.trees},
                (batch_size, capacity, None if sources is None else [list(source) for source in sources]),
                vocab_size,
            )
            super().__init__(
                loaded, batch_size, capacity, sources, vocab_size=vocab_size, hidden_layers=hidden_layers
            )
        # Also for a session that nobody closes.
        self._closing = weakref.finalize(self, self._leader.post, "close", self._key)

    def rollback(self, lengths: Sequence[int]) -> None:
        """See `ModelSession.rollback`."""
        self._leader.post("call", self._key, "rollback", list(lengths))
        super().rollback(lengths)

    @inference_only
    def resume(self, rows: Sequence[int], lengths: Sequence[int], capacity: int) -> None:
        """See `ModelSession.resume`."""
        self._leader.post("call", self._key, "resume", list(rows), list(lengths), capacity)
        super().resume(rows, lengths, capacity)

    @inference_only
    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """See `ModelSession.keep`."""
        self._leader.post("call", self._key, "keep", [list(path) for path in paths])
        super().keep(paths)

    @inference_only
    def prune(self, nodes: Sequence[Sequence[int]], trunks: Sequence[int]) -> None:
        """See `ModelSession.prune`."""
        self._leader.post("call", self._key, "prune", [list(row) for row in nodes], list(trunks))
        super().prune(nodes, trunks)

    def close(self) -> None:
        """See `ModelSession.close`."""
        super().close()
        self._closing()

    @inference_only
    def forward(
        self,
        uncached: Sequence[Sequence[int]],
        draft: Tensor | None = None,
        draft_lengths: Sequence[int] | None = None,
        parents: Tensor | None = None,
        states: Tensor | None = None,
    ) -> Tensor:
        """See `ModelSession.forward`."""
        assert states is None, "a draft head is not shared"
        tokens = [list(row) for row in uncached]
        lengths = None if draft_lengths is None else list(draft_lengths)
        with self._leader.lock:
            self._leader.run("forward", self._key, tokens, _rows(draft), lengths, _rows(parents))
            return super().forward(uncached, draft, draft_lengths, parents)


class Follower:
    """The work of a rank other than 0 on command. Its methods are the commands."""

    def __init__(self) -> None:
        self._models: dict[int, LoadedModel] = {}
        self._sessions: dict[int, ModelSession] = {}

    def load(self, model: int, settings: Mapping[str, Any]) -> None:
        """Load a share of a model. What cannot be loaded, rank 0 reports."""
        from specdec_core.models.load.loading import load_model

        try:
            self._models[model] = load_model(**settings)
        except ModelError:
            return

    def free(self, model: int) -> None:
        """Forget a model."""
        self._models.pop(model, None)

    def open(
        self, session: int, model: int, family: Mapping[str, Any], sizes: tuple[Any, ...], vocab_size: int | None
    ) -> None:
        """Open a session of a model, of which rank 0 says what its family supports."""
        loaded = self._models[model]
        as_known = replace(loaded, family=replace(loaded.family, **family))
        self._sessions[session] = ModelSession(as_known, *sizes, vocab_size=vocab_size)

    def forward(
        self,
        session: int,
        uncached: Sequence[Sequence[int]],
        draft: Sequence[Sequence[int]] | None,
        draft_lengths: Sequence[int] | None,
        parents: Sequence[Sequence[int]] | None,
    ) -> None:
        """Run a forward pass."""
        self._sessions[session].forward(uncached, _tensor(draft), draft_lengths, _tensor(parents))

    def call(self, session: int, method: str, *arguments: Any) -> None:
        """Call a method of a session that computes nothing together."""
        getattr(self._sessions[session], method)(*arguments)

    def close(self, session: int) -> None:
        """Close a session."""
        self._sessions.pop(session).close()

    def uncached(self, model: int, tokens: Sequence[int], source: Sequence[int] | None) -> None:
        """Run a forward pass without a cache."""
        from specdec_core.models.load.probe import uncached_logits

        uncached_logits(self._models[model], tokens, source)


def _rows(values: Tensor | None) -> list[list[int]] | None:
    rows: list[list[int]] | None = None if values is None else values.tolist()
    return rows


def _tensor(rows: Sequence[Sequence[int]] | None) -> Tensor | None:
    return None if rows is None else torch.tensor(rows, dtype=torch.long)
