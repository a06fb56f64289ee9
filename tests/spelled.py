"""Two tokenizers of a few tokens over the letters a, b and c: that of the tiny target, and another."""

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

TARGET_PIECES = ("a", "b", "ab", "c", "bc", "ca")
"""One for each id of the tiny target, whose end of sequence is `b`."""
OTHER_PIECES = ("c", "a", "b", "ab", "abc", "ca", "cab")
"""`abc` and `cab` are not the target's, and the target's `bc` is not among them."""
OTHER_VOCAB = len(OTHER_PIECES)
SHARED = {0: 3, 1: 0, 2: 1, 3: 2, 5: 5}
"""The target's id of each shared token."""


def tokenizer_of(pieces: Sequence[str], **special: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer with these pieces, the longer ones merged of one letter and the piece without it."""
    merges = [(piece[:1], piece[1:]) if piece[1:] in pieces else (piece[:-1], piece[-1:]) for piece in pieces]
    model = BPE({piece: token for token, piece in enumerate(pieces)}, [pair for pair in merges if all(pair)])
    inner = Tokenizer(model)
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=inner, **special)


def target_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tiny target's tokenizer."""
    return tokenizer_of(TARGET_PIECES)


def other_tokenizer() -> PreTrainedTokenizerFast:
    """Return the drafter's tokenizer."""
    return tokenizer_of(OTHER_PIECES)
