"""The committed text of a sequence in the drafter's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specdec_core.interface.outcome import common_prefix
from specdec_drafters.translated.shared import special_roles
from specdec_drafters.translated.spelling import Spelling

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
        """Return an encoder's input in the drafter's tokens."""
        text = b"".join(self.target.texts[token] or b"" for token in tokens).decode("utf-8", "replace")
        return self.drafter.encode_source(text.removeprefix(" ") if self.target.spaced else text)

    def split(self, text: Retokenized, tokens: Sequence[int], draft: Sequence[int]) -> list[int]:
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
