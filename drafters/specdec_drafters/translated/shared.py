"""The tokens that two vocabularies share, and distributions carried from one vocabulary to the other."""

import reprlib
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from specdec_core.interface import Candidates, Dense, PluginError, PointMass, Proposal, Sparse
from specdec_core.interface.proposal import Distribution
from specdec_core.verification import dense
from specdec_drafters.translated.spelling import Spelling

_ROLES = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "cls_token_id", "sep_token_id")
"""Special tokens that stand for each other whatever they are called."""


@dataclass(frozen=True)
class SharedTokens:
    """Pairs of tokens with the same text: a bijection between a part of each vocabulary.

    Args:
        pairs: The target's id of each shared token of the drafter.
        target_size: V, the number of token ids of the target.
        drafter_size: W, the number of token ids of the drafter.
    """

    pairs: dict[int, int]
    target_size: int
    drafter_size: int
    _tables: "dict[torch.device, _Tables]" = field(default_factory=dict, init=False, repr=False)
    _rows: WeakKeyDictionary[Candidates, Candidates] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False
    )

    def on(self, device: torch.device) -> "_Tables":
        """Return the shared tokens as tensors on a device."""
        if device not in self._tables:
            drafters = torch.tensor(sorted(self.pairs))
            targets = torch.tensor([self.pairs[token] for token in drafters.tolist()])
            to_target = torch.full((self.drafter_size,), -1)
            to_target[drafters] = targets
            to_drafter = torch.full((self.target_size,), -1)
            to_drafter[targets] = drafters
            tables = (drafters, targets, to_target, to_drafter)
            self._tables[device] = _Tables(*(table.to(device) for table in tables))
        return self._tables[device]

    def logits(self, logits: Tensor) -> Tensor:
        """Return the drafter's logits `[..., W]` as `[..., V]`: minus infinity for tokens that are not shared.

        Where no shared token has a finite one, all shared tokens get the same.
        """
        drafters, targets, *_ = self.on(logits.device)
        kept = logits[..., drafters]
        kept = torch.where((kept == -torch.inf).all(-1, keepdim=True), 0.0, kept)
        wide = kept.new_full((*logits.shape[:-1], self.target_size), -torch.inf)
        wide[..., targets] = kept
        return wide

    def probabilities(self, q: Tensor) -> Tensor:
        """Return q `[..., W]` of the drafter's tokens, given that the token is shared, as `[..., V]`.

        Where no shared token has any probability, all shared tokens get the same.
        """
        drafters, targets, *_ = self.on(q.device)
        kept = q[..., drafters]
        total = kept.sum(-1, keepdim=True)
        kept = torch.where(total == 0, 1 / len(self.pairs), kept / total)
        wide = kept.new_zeros((*q.shape[:-1], self.target_size))
        wide[..., targets] = kept
        return wide

    def candidates(self, row: Candidates) -> Candidates:
        """Return the drafter's candidates with the target's ids, without those that are not shared.

        Where no shared token is a candidate, all shared tokens are, with the same weight.
        """
        found = self._rows.get(row)
        if found is None:
            _, targets, to_target, _ = self.on(torch.device("cpu"))
            ids = to_target.numpy()[row.ids]
            kept = np.flatnonzero((ids >= 0) & (row.log_weights != -np.inf))
            kept = kept[ids[kept].argsort()]
            if len(kept):
                found = Candidates(ids[kept], row.log_weights[kept])
            else:
                found = Candidates(np.sort(targets.numpy()), np.zeros(len(targets), dtype=np.float32))
            self._rows[row] = found
        return found

    def to_drafter(self, tokens: Tensor) -> Tensor:
        """Return the drafter's ids of the target's tokens; some shared token for those that are not shared.

        A request draws shared tokens only. In a replay it may be made to draw others, to which q then gives 0:
        nothing can follow them.
        """
        tables = self.on(tokens.device)
        ids = tables.to_drafter[tokens]
        return torch.where(ids < 0, tables.drafters[0], ids)

    def of_drafter(self, q: Distribution) -> Distribution:
        """Return a distribution over shared tokens of the target, as one over the drafter's tokens."""
        if isinstance(q, Dense):
            return Dense(self._narrow(q.probabilities))
        if isinstance(q, Sparse):
            return Sparse(self.to_drafter(q.ids), q.probabilities)
        assert isinstance(q, PointMass), "what the core draws has one of these forms"
        return q

    def _narrow(self, values: Tensor) -> Tensor:
        """Return values `[..., V]` of the target's tokens as `[..., W]`, 0 for tokens that are not shared."""
        drafters, targets, *_ = self.on(values.device)
        narrow = values.new_zeros((*values.shape[:-1], self.drafter_size))
        narrow[..., drafters] = values[..., targets]
        return narrow

    def of_target(self, proposal: Proposal) -> Proposal:
        """Return a proposal of the drafter's tokens as one of the target's.

        Each draft is cut before its first token that is not shared. What is left was drawn from q, given that the
        token is shared, which is the q of the result.
        """
        drafts = [row[:most] for row, most in zip(proposal.tokens.tolist(), proposal.lengths, strict=True)]
        if not all(0 <= token < self.drafter_size for row in drafts for token in row):
            raise PluginError(
                f"{reprlib.repr(drafts)} was drafted; the drafter's own ids are 0 to {self.drafter_size - 1}."
            )
        kept = [list(takewhile(lambda token: token in self.pairs, row)) for row in drafts]
        tokens = Proposal.from_rows([[self.pairs[token] for token in row] for row in kept]).tokens
        width = tokens.shape[1]
        q: Distribution = proposal.q
        if not isinstance(q, PointMass):
            drafted = proposal.tokens.clamp(0, self.drafter_size - 1)
            q = Dense(self.probabilities(dense(q, drafted, self.drafter_size))[:, :width])
        return Proposal(tokens, tuple(map(len, kept)), q)


class _Tables(NamedTuple):
    """Shared tokens on a device.

    Attributes:
        drafters: `[S]` int64, their ids of the drafter, ascending.
        targets: `[S]` int64, their ids of the target.
        to_target: `[W]` int64, the target's id of each token of the drafter; -1 if it is not shared.
        to_drafter: `[V]` int64, the drafter's id of each token of the target; -1 if it is not shared.
    """

    drafters: Tensor
    targets: Tensor
    to_target: Tensor
    to_drafter: Tensor


def shared_tokens(target: Spelling, drafter: Spelling) -> SharedTokens:
    """Return the tokens that two tokenizers share.

    Tokens are paired by their texts. Special tokens are paired by their names, and else by their role.
    """
    pairs = {token: target.ids[text] for text, token in drafter.ids.items() if text in target.ids}
    names = drafter.special.keys() & target.special.keys()
    pairs.update({drafter.special[name]: target.special[name] for name in names})
    taken = set(pairs.values())
    for token, own in special_roles(drafter, target).items():
        if token not in pairs and own not in taken:
            pairs[token] = own
            taken.add(own)
    return SharedTokens(pairs, len(target.texts), len(drafter.texts))


def special_roles(one: Spelling, other: Spelling) -> dict[int, int]:
    """Return the special tokens of one tokenizer with those of another that have the same role."""
    found: dict[int, int] = {}
    for role in _ROLES:
        token, same = getattr(one.tokenizer, role, None), getattr(other.tokenizer, role, None)
        if token is not None and same is not None:
            found.setdefault(token, same)
    for name, token in one.special.items():
        if name in other.special:
            found[token] = other.special[name]
    return found
