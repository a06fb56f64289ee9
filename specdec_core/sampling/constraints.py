"""Constraints of a batch: which tokens may follow a prefix, which are forced, and where a text is complete.

Which tokens are legal is a function of the text alone. A row's matcher is therefore brought to the prefix that it
is asked about, by taking back what differs and reading the rest: positions along a draft, paths of a tree and the
inner loops of a hierarchy all ask the same matcher, and nobody has to roll it back.

References:
    llguidance, https://github.com/guidance-ai/llguidance: `LLMatcher`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from specdec_core.interface.errors import ConfigError
from specdec_core.interface.outcome import common_prefix
from specdec_core.models.device import uploaded

if TYPE_CHECKING:
    from specdec_core.interface.constraint import Constraint
    from specdec_core.models import LoadedModel

_tokenizers: WeakKeyDictionary[Any, dict[tuple[int, tuple[int, ...]], Any]] = WeakKeyDictionary()
"""llguidance's form of each tokenizer, by vocabulary size and end ids: it takes up to a second to make."""


class RowConstraint:
    """The constraint of one row, and a matcher that follows whatever prefix it is asked about.

    Args:
        matcher: llguidance's matcher, at the beginning of a text.
        begin: Number of tokens before the constrained text: those of the prompt.
        fast_forward: Whether forced tokens are committed without a forward pass.
    """

    def __init__(self, matcher: Any, begin: int, *, fast_forward: bool) -> None:
        self.fast_forward = fast_forward
        self._begin = begin
        self._fresh = matcher
        self._matcher = matcher.deep_copy()
        self._read: list[int] = []  # what the matcher is behind
        self._masks: dict[int, bytes | None] = {}  # by the number of tokens read

    def mask(self, prefix: Sequence[int]) -> bytes | None:
        """Return the legal next tokens, a bit each, the lowest bit of each byte first.

        None where there is nothing to exclude: the prefix is past the end of a complete text, or no text has this
        prefix, so that nothing after it is ever committed.
        """
        if not self._follow(prefix) or self._matcher.is_stopped():
            return None
        position = len(self._read)
        if position not in self._masks:
            mask = self._matcher.compute_bitmask()
            self._masks[position] = None if self._matcher.is_error() else mask
        return self._masks[position]

    def forced(self, prefix: Sequence[int]) -> int | None:
        """Return the only legal next token; None if there are several, or the text is complete."""
        mask = self.mask(prefix)
        if mask is None:
            return None
        bits = int.from_bytes(mask, "little")
        return bits.bit_length() - 1 if bits.bit_count() == 1 else None

    def end(self, tokens: Sequence[int]) -> int | None:
        """Return how many of these committed tokens there are up to where the text is complete; None if it is not.

        Raises:
            ConfigError: They cannot be continued to a legal text.
        """
        follows = self._follow(tokens)
        if self._matcher.is_stopped() and self._matcher.is_accepting():
            return self._begin + len(self._read)
        if not follows or self.mask(tokens) is None:
            new = len(tokens) - self._begin
            raise ConfigError(
                f"constraint: no legal text begins with these {new} new tokens. Either the acceptance rule kept a "
                "token that the constraint excludes, or the tokenizer cannot spell what the constraint asks for."
            )
        for position in [position for position in self._masks if position < len(self._read)]:
            del self._masks[position]
        return None

    def _follow(self, prefix: Sequence[int]) -> bool:
        """Bring the matcher behind a prefix, as far as it is legal; return whether all of it is."""
        wanted = list(prefix[self._begin :])
        kept = common_prefix(self._read, wanted)
        if kept < len(self._read) and not self._matcher.rollback(len(self._read) - kept):
            # It does not recover from a text that no token continues.
            self._matcher = self._fresh.deep_copy()
            self._matcher.consume_tokens(wanted[:kept])
        del self._read[kept:]
        for position in [position for position in self._masks if position > kept]:
            del self._masks[position]
        more = wanted[kept:]
        taken = self._matcher.try_consume_tokens(more) if more else 0
        self._read += more[:taken]
        return taken == len(more)


class Constraints:
    """The constraints of the rows of a batch.

    Args:
        rows: One per row; None for a row without.
        vocab_size: V.
    """

    def __init__(self, rows: Sequence[RowConstraint | None], vocab_size: int) -> None:
        self._rows = rows
        self._vocab = vocab_size

    def legal(self, prefixes: Sequence[Sequence[int]], device: torch.device) -> Tensor:
        """Return which tokens may follow each prefix.

        Args:
            prefixes: N prefixes, the same number for each row of the batch, row by row.
            device: Where the result is needed.

        Returns:
            `[N, V]` bool.
        """
        each = len(prefixes) // len(self._rows)
        packed = np.full((len(prefixes), (self._vocab + 7) // 8), 255, dtype=np.uint8)
        for number, prefix in enumerate(prefixes):
            row = self._rows[number // each]
            mask = None if row is None else row.mask(prefix)
            if mask is not None:
                packed[number] = np.frombuffer(mask, np.uint8)[: packed.shape[1]]
        allowed = np.unpackbits(packed, axis=1, count=self._vocab, bitorder="little").view(np.bool_)
        return uploaded(allowed, device)

    def forced(self, row: int, tokens: Sequence[int], room: int) -> list[int]:
        """Return the tokens that are forced after a row's committed ones, at most `room` of them."""
        constraint = self._rows[row]
        found: list[int] = []
        while constraint is not None and constraint.fast_forward and len(found) < room:
            token = constraint.forced([*tokens, *found])
            if token is None:
                break
            found.append(token)
        return found

    def end(self, row: int, tokens: Sequence[int]) -> int | None:
        """Return how many of a row's committed tokens there are up to the end of its text; None if it has none.

        Raises:
            ConfigError: They cannot be continued to a legal text.
        """
        constraint = self._rows[row]
        return None if constraint is None else constraint.end(tokens)


def open_constraints(
    given: Sequence[Constraint | None],
    begins: Sequence[int],
    target: LoadedModel,
) -> Constraints | None:
    """Return the constraints of a batch; None if no row has one.

    Args:
        given: The constraint of each row; None for a row without.
        begins: The number of tokens before the text of each row.
        target: The target. Its end-of-sequence ids are legal where a text may end.

    Raises:
        ConfigError: The target has no tokenizer or one that cannot be used, or a constraint has no text in it.
    """
    if all(constraint is None for constraint in given):
        return None
    import llguidance

    if target.tokenizer is None:
        raise ConfigError(
            f"constraint: {target.name} has no tokenizer, which says what text a token stands for; load or wrap "
            "the model with its tokenizer."
        )
    vocabulary = _vocabulary(target.tokenizer, target.vocab_size, tuple(sorted(target.eos_ids)))
    matchers: dict[str, Any] = {}
    rows: list[RowConstraint | None] = []
    for constraint, begin in zip(given, begins, strict=True):
        if constraint is None:
            rows.append(None)
            continue
        text = constraint.compiled()
        if text not in matchers:
            matchers[text] = llguidance.LLMatcher(vocabulary, text, log_level=0)
            if matchers[text].is_error():
                raise ConfigError(f"constraint: llguidance cannot use it: {matchers[text].get_error()}")
        row = RowConstraint(matchers[text], begin, fast_forward=constraint.fast_forward)
        row.end([0] * begin)  # raises if no text is legal
        rows.append(row)
    return Constraints(rows, target.vocab_size)


def _vocabulary(tokenizer: Any, vocab_size: int, eos_ids: tuple[int, ...]) -> Any:
    """Return llguidance's form of a tokenizer."""
    from llguidance.hf import from_tokenizer

    try:
        made = _tokenizers.setdefault(tokenizer, {})
        if (vocab_size, eos_ids) not in made:
            made[vocab_size, eos_ids] = from_tokenizer(tokenizer, vocab_size, list(eos_ids) or None)
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"constraint: llguidance cannot use the target's tokenizer, {type(tokenizer).__name__}: {error}. It "
            "takes the fast tokenizers of transformers whose tokens stand for bytes."
        ) from error
    return made[vocab_size, eos_ids]
