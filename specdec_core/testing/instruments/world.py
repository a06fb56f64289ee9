"""The small targets that plugins are tried with: so small that every short continuation can be enumerated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from specdec_core.border import TargetInfo
from specdec_core.models import LoadedModel, wrap_model
from specdec_core.testing.instruments.model_state import changed, state_of
from specdec_core.testing.instruments.tiny import gpt2_config, random_model, t5_config

VOCAB = 6
"""V, the number of token ids of these targets."""
EOS = 1
"""The id that ends a sequence."""
PROMPT = (2, 3, 5, 2, 3)
"""What continuations begin with, or the source that they answer. It repeats itself, so that it can be copied."""


@dataclass(frozen=True, eq=False)
class World:
    """A small target.

    Attributes:
        name: `decoder-only` or `encoder-decoder`.
        target: The model, with random weights.
        info: What drafters are told of it. There is nothing in it to make nested plugins with.
        state: All of the model and its tokenizer that a plugin could change, as it was made.
    """

    name: str
    target: LoadedModel
    info: TargetInfo

    state: Mapping[str, Any] = field(repr=False)

    def __str__(self) -> str:
        return f"the {self.name} target of {VOCAB} token ids"

    @property
    def encoder_decoder(self) -> bool:
        """Whether the target reads a source."""
        return self.target.encoder_decoder

    def changed(self) -> list[str]:
        """Return the names of what is now unlike it was made, of the model and its tokenizer."""
        return changed(self.state, self.target.model, self.target.tokenizer)

    def begin(self, prompt: Sequence[int] = PROMPT) -> list[int]:
        """Return the tokens that a row begins with: the prompt or, with an encoder, the start token."""
        return list(prompt) if self.target.start_id is None else [self.target.start_id]


_WORLDS: dict[tuple[bool, str, bool], World] = {}


def world(encoder_decoder: bool = False, device: str = "cpu", *, tokenizer: bool = False) -> World:
    """Return a small target; made once in a process.

    Args:
        encoder_decoder: Which kind.
        device: Where it computes.
        tokenizer: Whether it comes with a tokenizer, whose text of a token is its number.
    """
    key = encoder_decoder, device, tokenizer
    if key not in _WORLDS:
        target = small_target(device, encoder_decoder=encoder_decoder)
        if tokenizer:
            target = replace(target, tokenizer=number_tokenizer(target.vocab_size))
        name = "encoder-decoder" if encoder_decoder else "decoder-only"
        _WORLDS[key] = World(name, target, target.info(), state_of(target.model, target.tokenizer))
    return _WORLDS[key]


def drop_spoilt() -> None:
    """Forget the small targets that somebody changed; they are made again when they are asked for."""
    for key, one in list(_WORLDS.items()):
        if one.changed():
            del _WORLDS[key]


def small_target(device: str = "cpu", *, encoder_decoder: bool = False, seed: int = 0) -> LoadedModel:
    """Return a random model small enough to enumerate; the entropy of its continuations is some 4 of 5 nats."""
    config = t5_config(VOCAB) if encoder_decoder else gpt2_config(VOCAB, pad_token_id=None)
    return wrap_model(random_model(config, seed, sharpness=0.8).to(torch.device(device)))


def number_tokenizer(vocab_size: int) -> Any:
    """Return a tokenizer whose words are the numbers of their ids, separated by blanks."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = WordLevel({str(token): token for token in range(vocab_size)}, unk_token="0")
    made = Tokenizer(words)
    made.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=str(EOS), unk_token="0")


@torch.inference_mode()
def fresh_logits(target: LoadedModel, rows: Sequence[Sequence[int]], source: Sequence[int] = PROMPT) -> Tensor:
    """Return a model's logits `[B, T, V]` after each token of some rows, from a fresh forward without a cache.

    Args:
        target: The model.
        rows: B rows of T tokens; with an encoder the decoder's tokens.
        source: With an encoder, what they answer.
    """
    ids = torch.tensor([list(row) for row in rows], device=target.device)
    # Said, since the library would wonder about tokens that are also its padding.
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if target.encoder_decoder:
        sources = torch.tensor([list(source)] * len(rows), device=target.device)
        given = {"input_ids": sources, "attention_mask": torch.ones_like(sources), "decoder_input_ids": ids}
    logits: Tensor = target.model(**given, use_cache=False).logits
    return logits
