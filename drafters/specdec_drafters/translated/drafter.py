"""The translated drafter: a drafter whose tokenizer is not the target's."""

import reprlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from specdec_core.decoding import TokenView, check_form, greedy_request
from specdec_core.interface import (
    Branches,
    Candidates,
    CompositeDrafter,
    ConfigError,
    Drafter,
    DraftRequest,
    DraftSession,
    GammaController,
    Outcome,
    PluginError,
    Proposal,
    SessionInfo,
    TargetInfo,
)
from specdec_core.interface.errors import PluginWarning
from specdec_core.interface.outcome import common_prefix
from specdec_core.interface.tree import TreeShape
from specdec_core.models import ModelOutline, fetched_later, load_outline
from specdec_core.registry import models_in
from specdec_drafters.common.draft_model_loading import make_nested
from specdec_drafters.settings import TranslatedConfig
from specdec_drafters.translated.shared import SharedTokens, shared_tokens, special_roles
from specdec_drafters.translated.spelling import Spelling, spelling_of

BLOCK = 64
"""A text is tokenized in pieces of about as many tokens of the target."""
_LONGEST = 4 * BLOCK


class Retokenizer:
    """Turns the target's tokens into the drafter's, by way of text.

    Args:
        target: The texts of the target's tokens.
        drafter: The texts of the drafter's tokens.
        encoder_decoder: Whether the rows are a decoder's, which begin with a start token, not with a text.
        start: The start token of the drafter's decoder; by default, its token with the role of the target's.
    """

    def __init__(
        self, target: Spelling, drafter: Spelling, *, encoder_decoder: bool = False, start: int | None = None
    ) -> None:
        self.target, self.drafter = target, drafter
        self._decoder = encoder_decoder
        self.special = special_roles(target, drafter)
        self._back = special_roles(drafter, target)
        self.prefix = drafter.prefix
        if encoder_decoder:
            self.prefix = () if start is None else (start,)

    def is_text(self, position: int, token: int) -> bool:
        """Whether a token of the target is a part of the text, at its position in a sequence."""
        return self.target.texts[token] is not None and not (self._decoder and position == 0)

    def meaning(self, position: int, token: int) -> tuple[int, ...]:
        """Return what the drafter reads for a token that is not text: its counterpart, or nothing."""
        own = self.target.prefix
        begins = position == 0 and bool(self.prefix) if self._decoder else own[position : position + 1] == (token,)
        return () if begins or token not in self.special else (self.special[token],)

    def source(self, tokens: Sequence[int]) -> list[int]:
        """Return an encoder's input in the drafter's tokens, special ones included."""
        text = b"".join(self.target.texts[token] or b"" for token in tokens).decode("utf-8", "replace")
        ids: list[int] = self.drafter.tokenizer(text.removeprefix(" ") if self.target.spaced else text)[
            "input_ids"
        ]
        return ids

    def split(self, text: "Retokenized", tokens: Sequence[int], draft: Sequence[int]) -> list[int]:
        """Return a draft in the target's tokens.

        The text is split together with the end of the committed text, so that it goes on as the target's tokenizer
        would; where that would have split the committed text otherwise, it is split by itself.

        Args:
            text: The committed text.
            tokens: Its tokens of the target.
            draft: The drafter's tokens that follow it.
        """
        spelled = [self.drafter.texts[token] for token in draft]
        ends = spelled.index(None) if None in spelled else len(draft)
        new = b"".join(one or b"" for one in spelled[:ends])
        after = [self._back[token] for token in draft[ends : ends + 1] if token in self._back]
        if not text.begun:
            new = new.removeprefix(b" ") if self.drafter.spaced else new
            new = b" " + new if self.target.spaced and not new.startswith(b" ") else new
        last = list(tokens[text.open_start :])
        positioned = enumerate(last, start=text.open_start)
        before = b"".join(
            self.target.texts[token] or b"" for position, token in positioned if self.is_text(position, token)
        )
        whole = before + new
        whole = whole[: len(whole) - incomplete(whole)]
        ids = self.target.encode(whole.decode("utf-8", "replace"))
        if ids[: len(last)] == last:
            return ids[len(last) :] + after
        if incomplete(before):
            return []  # the draft goes on within a character
        return self.target.encode(new[: len(new) - incomplete(new)].decode("utf-8", "replace")) + after


@dataclass(frozen=True)
class _Mark:
    """Where a block ends.

    Attributes:
        read: Number of the target's tokens up to there.
        ids: Number of the drafter's tokens up to there.
        begun: Whether there is text before it.
    """

    read: int
    ids: int
    begun: bool


class Retokenized:
    """The committed text of one sequence in the drafter's tokens, which depend on that text alone.

    The text is cut into blocks, each before a word, once it has `BLOCK` tokens; where a block ends depends on the
    tokens up to there and the next. A block is tokenized anew with each token that joins it, so that a step costs
    about as much at any length; the blocks before it stay.

    Args:
        retokenizer: How tokens are turned into tokens.

    Attributes:
        ids: The drafter's tokens.
        unchanged: How many of the first ones have not changed since this was set last.
        open_text: The text of the last block.
        open_start: Number of the target's tokens before the last block.
    """

    def __init__(self, retokenizer: Retokenizer) -> None:
        self._how = retokenizer
        self.ids: list[int] = list(retokenizer.prefix)
        self._marks = [_Mark(0, len(self.ids), begun=False)]
        self.open_text = b""
        self._read = 0
        self.unchanged = 0
        self._whole = True

    @property
    def open_start(self) -> int:
        """Number of the target's tokens before the last block."""
        return self._marks[-1].read

    @property
    def sound(self) -> bool:
        """Whether `ids` are the text: not if it ends in bytes that the drafter has no tokens for, or is empty."""
        return self._whole and bool(self.ids)

    @property
    def begun(self) -> bool:
        """Whether there is any text yet."""
        return self._marks[-1].begun or bool(self.open_text)

    def read(self, tokens: Sequence[int]) -> None:
        """Read on in the committed tokens of the target, of which there may be more than last time."""
        if self._read == len(tokens):
            return
        for token in tokens[self._read :]:
            self._add(token)
        self._retokenize()

    def rollback(self, length: int) -> None:
        """Forget all but the first `length` tokens of the target."""
        if length >= self._read:
            return
        while self._marks[-1].read > length:
            self._marks.pop()
        # The tokens of the last block are read again.
        self._read = self._marks[-1].read
        self.open_text = b""
        self._replace_tail([])

    def _add(self, token: int) -> None:
        text = self._how.target.texts[token]
        if text is None or not self._how.is_text(self._read, token):
            self._add_special(token)
            return
        count = self._read - self.open_start
        # Tokenizers split before a single space and what follows it; not all do at other white space.
        new_word = text[:1] == b" " and text[1:2].strip() != b"" and self.open_text[-1:].strip() != b""
        if count >= BLOCK and (new_word or count >= _LONGEST) and not incomplete(self.open_text):
            self._end_block()
        self.open_text += text
        self._read += 1

    def _add_special(self, token: int) -> None:
        self._end_block()
        self.ids += self._how.meaning(self._read, token)
        self._read += 1
        self._marks.append(_Mark(self._read, len(self.ids), self._marks[-1].begun))

    def _end_block(self) -> None:
        """Tokenize the last block for good, and begin another."""
        self._retokenize()
        self._marks.append(_Mark(self._read, len(self.ids), self.begun))
        self.open_text = b""

    def _retokenize(self) -> None:
        text = self.open_text
        rest = text[len(text) - incomplete(text) :]
        complete = text[: len(text) - len(rest)].decode("utf-8", "replace")
        if not self._marks[-1].begun:
            complete = complete.removeprefix(" ") if self._how.target.spaced else complete
            if self._how.drafter.spaced and complete and not complete.startswith(" "):
                complete = f" {complete}"
        # A character that is not complete yet is a token for each byte, in any tokenizer that has those.
        tail = [self._how.drafter.ids.get(rest[n : n + 1], -1) for n in range(len(rest))]
        self._whole = -1 not in tail
        self._replace_tail(self._how.drafter.encode(complete) + [token for token in tail if token >= 0])

    def _replace_tail(self, ids: list[int]) -> None:
        """Replace the tokens after the last mark."""
        start = self._marks[-1].ids
        old = self.ids[start:]
        self.unchanged = min(self.unchanged, start + common_prefix(old, ids))
        self.ids[start:] = ids


def incomplete(text: bytes) -> int:
    """Return how many of the last bytes begin a character of UTF-8 that is not complete."""
    for count in range(1, min(3, len(text)) + 1):
        byte = text[-count]
        if byte >= 0xC0:  # the first byte of a character
            size = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return count if count < size else 0
        if byte < 0x80:
            return 0
    return 0


class SharedTokenRequest:
    """Draws among shared tokens, by the request of the target (token-level intersection).

    The drafter's logits of shared tokens become logits of the target's tokens, minus infinity elsewhere. What the
    core draws and records is therefore a token of the target and its q; the drafter is told its own id of it.

    Args:
        outer: The request in the target's tokens.
        shared: The shared tokens.
        tokens: The committed tokens, in the drafter's ids.

    Attributes:
        tokens: The committed tokens of each sequence, in the drafter's ids.
        budget: The maximum number of tokens to draft for each sequence.
    """

    tree: TreeShape | None = None
    hidden_states: Mapping[int, Tensor] = MappingProxyType({})

    def __init__(self, outer: DraftRequest, shared: SharedTokens, tokens: Sequence[Sequence[int]]) -> None:
        self.tokens, self.budget = tokens, outer.budget
        self._outer = outer
        self._shared = shared
        self._forks: list[SharedTokenRequest] = []
        self._made: tuple[Proposal, Proposal] | None = None
        self._going: list[bool] | None = None

    @property
    def depth(self) -> tuple[int, ...]:
        """See `DraftRequest`."""
        return self.budget

    def branch(self, logits: Tensor) -> Branches:  # noqa: ARG002
        """Raise an error: drafts that are translated are lines."""
        raise PluginError("branch() was called although `tree` is None: a line was asked for; use sample().")

    def sample(self, logits: Tensor) -> Tensor:
        """See `DraftRequest.sample`."""
        self._check(logits, "logits")
        return self._shared.to_drafter(self._outer.sample(self._shared.logits(logits)))

    def sample_line(self, run: Callable[[Any], Any]) -> bool:  # noqa: ARG002
        """See `DraftRequest.sample_line`. Each token is translated, so that the line cannot be captured."""
        return False

    def draw(self, probabilities: Tensor) -> Tensor:
        """See `DraftRequest.draw`."""
        self._check(probabilities, "probabilities")
        return self._shared.to_drafter(self._outer.draw(self._shared.probabilities(probabilities)))

    def sample_candidates(self, rows: Sequence[Candidates | None]) -> list[int]:
        """See `DraftRequest.sample_candidates`."""
        self._check_rows(rows)
        carried = [None if row is None else self._shared.candidates(row) for row in rows]
        return self._shared.to_drafter(torch.tensor(self._outer.sample_candidates(carried))).tolist()

    def extend(self, tokens: Sequence[Sequence[int]], q: Tensor | None) -> Sequence[bool]:
        """See `DraftRequest.extend`. A sequence ends before its first token that is not shared."""
        pairs = self._shared.pairs
        going = self._going or [True] * len(self.budget)
        rows = zip(tokens, going, strict=True)
        shared = [list(takewhile(pairs.__contains__, row if on else ())) for row, on in rows]
        wide = None if q is None else self._shared.probabilities(q)
        more = self._outer.extend([[pairs[token] for token in row] for row in shared], wide)
        kept = [len(row) == len(given) for row, given in zip(shared, tokens, strict=True)]
        self._going = [on and whole and left for on, whole, left in zip(going, kept, more, strict=True)]
        return self._going

    def wants_more(self) -> bool:
        """See `DraftRequest.wants_more`."""
        return self._outer.wants_more() if self._going is None else any(self._going)

    def proposal(self) -> Proposal:
        """See `DraftRequest.proposal`."""
        outer = self._outer.proposal()
        own = Proposal(self._shared.to_drafter(outer.tokens), outer.lengths, self._shared.of_drafter(outer.q))
        self._made = own, outer
        return own

    def fork(self, budget: Sequence[int], after: Sequence[Sequence[int]] | None = None) -> "SharedTokenRequest":
        """See `DraftRequest.fork`; `after` has shared tokens only."""
        tokens, outer = self.tokens, None
        if after is not None:
            tokens = [TokenView([*row, *new]) for row, new in zip(tokens, after, strict=True)]
            outer = [[self._shared.pairs.get(token, -1) for token in row] for row in after]
        fork = SharedTokenRequest(self._outer.fork(budget, outer), self._shared, tokens)
        self._forks.append(fork)
        return fork

    def translated(self, proposal: Proposal) -> Proposal:
        """Return the drafter's proposal in the target's tokens, with their q."""
        found = self._recorded(proposal)
        return self._shared.of_target(proposal) if found is None else found.shortened(proposal.lengths)

    def _recorded(self, proposal: Proposal) -> Proposal | None:
        """Return what the core recorded for a proposal that was drawn here or in a fork."""
        if self._made is not None:
            own, outer = self._made
            if proposal.tokens is own.tokens and proposal.q is own.q:
                return outer
        return next((found for fork in self._forks if (found := fork._recorded(proposal)) is not None), None)

    def _check(self, values: Tensor, what: str) -> None:
        expected = (len(self.budget), self._shared.drafter_size)
        if not isinstance(values, Tensor) or tuple(values.shape) != expected:
            shape = tuple(getattr(values, "shape", ()))
            raise PluginError(
                f"{what} of shape {shape} were given; [B, W] is {expected} here, for the drafter's own tokens."
            )

    def _check_rows(self, rows: Sequence[Candidates | None]) -> None:
        last = self._shared.drafter_size - 1
        for row in rows:
            if row is not None and not (len(row.ids) and 0 <= row.ids.min() <= row.ids.max() <= last):
                raise PluginError(
                    f"ids of candidates must be within the drafter's own vocabulary (0 to {last}), at least one; "
                    f"given {reprlib.repr(row.ids.tolist())}."
                )


_FEW = 0.1
"""Below this share of the drafter's tokens that the target has too, a warning is due."""


class TranslatedDrafter(CompositeDrafter):
    """Drafts with a drafter that has its own tokenizer.

    The drafter sees the committed text in its own tokens: the text of the target's tokens, tokenized anew. Where
    that changes tokens that the drafter has read, it is rolled back to those before.

    `tli` (token-level intersection) draws each draft token among the tokens that both vocabularies hold, from the
    drafter's distribution restricted to them and renormalized. That is q: sampling is exact at any temperature.
    `slem` (string-level exact match) has the drafter draft its most probable tokens; their text, split by the
    target's tokenizer, is the draft, and its q is a point mass.

    In Python, the settings may contain a drafter, whose `target` then says what its tokenizer is.

    References:
        TLI and SLEM of Timor et al. 2025 (arXiv 2502.05202).

    Attributes:
        drafter: The drafter in its own tokens.
        shared: The tokens that both vocabularies hold.
    """

    def __init__(self, config: TranslatedConfig, target: TargetInfo) -> None:
        if target.tokenizer is None:
            raise ConfigError(
                "drafter 'translated': the target has no tokenizer, so that its tokens have no text. Add the "
                "tokenizer's files to the target's folder."
            )
        start, own_target = None, target
        if not isinstance(config.drafter, Drafter):
            outline = _outline(config, target)
            start, own_target = outline.start_id, _in_own_tokens(outline, target)
        self.drafter: Drafter = make_nested("drafter", config.drafter, own_target, "translated")
        super().__init__(config, target, [self.drafter])
        self.max_length = None  # that of the drafter counts its own tokens
        own = self.drafter.target
        if own.tokenizer is None:
            raise ConfigError(
                "drafter 'translated': its drafter has no tokenizer; name one in 'tokenizer', or wrap no drafter "
                "whose tokens are the target's."
            )
        if self.drafter.hidden_layers:
            raise PluginError(
                f"drafter 'translated' cannot hold {type(self.drafter).__name__}, which works on the target's "
                "hidden states and so drafts the target's tokens; use it by itself."
            )
        spellings = (
            spelling_of(target.tokenizer, target.vocab_size, "the target's"),
            spelling_of(own.tokenizer, own.vocab_size, "the drafter's"),
        )
        self.texts = Retokenizer(*spellings, encoder_decoder=target.encoder_decoder, start=start)
        self.shared: SharedTokens = shared_tokens(*spellings)
        if config.method == "tli":
            self._check_shared()
        # A text that is cut short may split into other tokens.
        self.drafts_by_budget = config.method == "slem" or self.drafts_by_budget

    @property
    def share(self) -> float:
        """The share of the drafter's tokens that the target has, too."""
        return len(self.shared.pairs) / self.shared.drafter_size

    def _check_shared(self) -> None:
        drafted = sum(self.texts.drafter.texts[token] is not None for token in self.shared.pairs)
        sizes = f"{self.shared.drafter_size} tokens of the drafter and {self.shared.target_size} of the target"
        if drafted == 0:
            raise ConfigError(
                f"drafter 'translated': no text is that of a token in both vocabularies ({sizes}), so that `tli` "
                "can draft nothing; use method: slem, or another drafter."
            )
        if self.share < _FEW:
            warnings.warn(
                f"drafter 'translated': only {len(self.shared.pairs)} tokens are shared ({sizes}). `tli` drafts "
                "no others, and few drafts may be accepted; compare with method: slem.",
                PluginWarning,
                stacklevel=2,
            )

    def open(self, session: SessionInfo) -> DraftSession:
        """Start a batch for the drafter, in its own tokens."""
        return _TranslatedSession(self, session)


def _in_own_tokens(outline: ModelOutline, target: TargetInfo) -> TargetInfo:
    """Return the target as the drafter sees it: as if it had the drafter's tokenizer."""
    if outline.tokenizer is None:
        raise ConfigError(
            "drafter 'translated': the model of the drafter has no tokenizer; name one that has in 'tokenizer'."
        )
    return replace(
        target,
        vocab_size=outline.vocab_size,
        eos_ids=outline.eos_ids,
        tokenizer=outline.tokenizer,
        features=None,  # hidden states are followed by the target's own tokens
        model=None,
    )


def _outline(config: TranslatedConfig, target: TargetInfo) -> ModelOutline:
    """Return the tokenizer and the sizes of the drafter's vocabulary, without loading its weights."""
    if config.tokenizer is not None:
        return load_outline(config.tokenizer, folder=target.folder)
    model = next(models_in(config.drafter), None)
    if model is None:
        raise ConfigError(
            f"drafter 'translated': {getattr(config.drafter, 'name', config.drafter)!r} names no model whose "
            "tokenizer it could have; give 'tokenizer', a folder, a hub name or a built-in model."
        )
    return load_outline(model.model, folder=target.folder, revision=model.revision, subfolder=model.subfolder)


class _TranslatedSession(DraftSession):
    """One batch.

    Before the drafter is asked again, it is told what was committed since, in its own tokens. As far as they agree
    with its last draft, that was accepted. Where they differ from what it was told before, it is rolled back.
    """

    def __init__(self, translated: TranslatedDrafter, session: SessionInfo) -> None:
        self._translated = translated
        self._info = session
        self._texts = [Retokenized(translated.texts) for _ in range(session.batch_size)]
        self._capacity = 2 * session.capacity
        self._finished = (False,) * session.batch_size
        self._begin()

    def _begin(self) -> None:
        """Open a session of the drafter, which knows no tokens yet."""
        self._session = self._translated.drafter.open(self._own_info())
        self._told: list[list[int]] = [[] for _ in self._texts]
        self._views = tuple(map(TokenView, self._told))
        self._last: tuple[Callable[[], list[list[int]]], tuple[int, ...]] | None = None
        self._asked = False
        for text in self._texts:
            text.unchanged = 0

    def _own_info(self) -> SessionInfo:
        outer = self._info
        sources = None if outer.sources is None else [*map(self._translated.texts.source, outer.sources)]
        own = replace(
            outer,
            vocab_size=self._translated.shared.drafter_size,
            capacity=self._capacity,
            sources=sources,
            trees=False,
        )

        def open_loop(
            model: Any, drafter: Drafter, gamma: GammaController, session: SessionInfo | None = None
        ) -> DraftSession:
            assert outer.loop is not None, "there is no loop to open otherwise"
            return outer.loop(model, drafter, gamma, session or own)

        return own if outer.loop is None else replace(own, loop=open_loop)

    def propose(self, request: DraftRequest) -> Proposal:
        self._catch_up(request.tokens)
        sound = [n if text.sound else 0 for n, text in zip(request.budget, self._texts, strict=True)]
        budget = self._translated.drafter.clipped(self._told, sound, self._info.note)
        if not any(budget):
            return Proposal.empty(len(budget), self._info.device)
        self._asked = True
        if self._translated.config.method == "slem":
            return self._draft_text(request.tokens, budget)
        outer = request if budget == tuple(request.budget) else request.fork(budget)
        own = SharedTokenRequest(outer, self._translated.shared, self._views)
        return own.translated(self._drafted(own))

    def _drafted(self, request: DraftRequest) -> Proposal:
        size = self._translated.shared.drafter_size
        proposal = check_form(self._session.propose(request), request.budget, size)
        # Read in the next step, when the device has long finished.
        self._last = fetched_later(proposal.tokens), proposal.lengths
        return proposal

    def _draft_text(self, tokens: Sequence[Sequence[int]], budget: Sequence[int]) -> Proposal:
        size = self._translated.shared.drafter_size
        self._drafted(greedy_request(self._views, budget, size, self._info.device))
        assert self._last is not None
        drafts = _cut(self._last[0](), self._last[1])
        split = self._translated.texts.split
        rows = zip(self._texts, tokens, drafts, budget, strict=True)
        return Proposal.from_rows(
            [split(text, row, draft)[:most] if draft else [] for text, row, draft, most in rows]
        )

    def commit(self, outcome: Outcome) -> None:
        """Remember which rows have ended; the tokens themselves come with the next request."""
        self._finished = outcome.finished

    def rollback(self, lengths: Sequence[int]) -> None:
        """Forget the text after the first tokens of each row."""
        for text, length in zip(self._texts, lengths, strict=True):
            text.rollback(length)

    def close(self) -> None:
        """Close the drafter's session."""
        self._session.close()

    def _catch_up(self, tokens: Sequence[Sequence[int]]) -> None:
        """Tell the drafter in its own tokens what was committed since it was asked last."""
        for text, row in zip(self._texts, tokens, strict=True):
            text.read(row)
        longest = max(len(text.ids) for text in self._texts)
        if longest > self._capacity:
            self._session.close()
            self._capacity = 2 * longest
            self._begin()
        if self._asked:
            self._tell()
        for told, text in zip(self._told, self._texts, strict=True):
            told[text.unchanged :] = text.ids[text.unchanged :]
            text.unchanged = len(text.ids)

    def _tell(self) -> None:
        """Report the last draft's outcome, and what the text has changed to where it changed."""
        used = self._last is not None
        drafts = [[] for _ in self._texts] if self._last is None else _cut(self._last[0](), self._last[1])
        self._last = None
        kept = [self._kept(*row) for row in zip(self._told, drafts, self._texts, strict=True)]
        before = [len(told) for told in self._told]
        accepted = tuple(max(n - old, 0) for n, old in zip(kept, before, strict=True))
        nothing = (0,) * len(kept)
        # Rows whose earlier tokens stay are committed at once, the others after they were rolled back.
        first = tuple(
            tuple(text.ids[old:]) if n >= old else ()
            for text, n, old in zip(self._texts, kept, before, strict=True)
        )
        if used or any(first):
            lengths = tuple(map(len, drafts))
            for told, new in zip(self._told, first, strict=True):
                told += new
            self._session.commit(Outcome(lengths, accepted, first, self._finished))
        if all(n >= old for n, old in zip(kept, before, strict=True)):
            return
        lengths = tuple(n if n < old else len(told) for n, old, told in zip(kept, before, self._told, strict=True))
        for told, length in zip(self._told, lengths, strict=True):
            del told[length:]
        self._session.rollback(lengths)
        rest = tuple(tuple(text.ids[n:]) for text, n in zip(self._texts, lengths, strict=True))
        for told, new in zip(self._told, rest, strict=True):
            told += new
        self._session.commit(Outcome(nothing, nothing, rest, self._finished))

    @staticmethod
    def _kept(told: list[int], draft: list[int], text: Retokenized) -> int:
        """Return how many of the tokens told and drafted the text begins with."""
        start = min(text.unchanged, len(told), len(text.ids))
        return start + common_prefix([*told[start:], *draft], text.ids[start:])


def _cut(rows: Sequence[list[int]], lengths: Sequence[int]) -> list[list[int]]:
    return [row[:n] for row, n in zip(rows, lengths, strict=True)]
