"""Tiny random models, and the targets that plugins are checked on: every short continuation can be enumerated.

Models are built from configs. Nothing is read from disk or downloaded.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.modeling_outputs import BaseModelOutput

from specdec_core.interface import LAST_HIDDEN, TargetInfo
from specdec_core.models import LoadedModel, wrap_model
from specdec_core.testing.harness.state import changed_state, model_state

VOCAB = 6
"""Vocabulary size V of the targets."""
EOS = 1
"""The end-of-sequence id."""
PROMPT = (2, 3, 5, 2, 3)
"""The prompt of enumerated continuations, or the source with an encoder. It has repetitions to copy."""
IDS = {"bos_token_id": 0, "eos_token_id": EOS, "pad_token_id": 0, "tie_word_embeddings": False}
"""Settings that the configs of all tiny models share."""


def gpt2_config(vocab: int, **settings: Any) -> Any:
    """Return the config of a tiny decoder-only model with this vocabulary size."""
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
    return transformers.GPT2Config(**(sizes | IDS | {"vocab_size": vocab} | settings))


def t5_config(vocab: int, **settings: Any) -> Any:
    """Return the config of a tiny encoder-decoder model with this vocabulary size."""
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
    return transformers.T5Config(**(sizes | IDS | {"vocab_size": vocab} | settings))


def random_model(config: Any, seed: int = 0, sharpness: float = 4.0, kind: Any = None) -> Any:
    """Build a random model whose next-token distribution is far from uniform.

    Torch's global generator is left as it was.

    Args:
        config: A Hugging Face config.
        seed: Seed of the weights.
        sharpness: Scale of the output weights. Fresh models are nearly uniform, which would hide errors.
        kind: Model class. By default the auto class for causal or sequence-to-sequence models chooses.
    """
    auto = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = (kind(config) if kind else auto.from_config(config)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.mul_(3.0 if "norm" not in name else 1.0)
        head = model.get_output_embeddings()
        if head is not None:
            head.weight.mul_(sharpness / (head.weight.std() * 32**0.5))
    return model


@dataclass(frozen=True, eq=False)
class TinyTarget:
    """A target with `VOCAB` token ids and random weights.

    Attributes:
        loaded: The model.
        info: What drafters are given. It cannot build nested plugins.
        state: Everything of the model and its tokenizer that a plugin could change, as it was built.
    """

    loaded: LoadedModel
    info: TargetInfo
    state: Mapping[str, Any] = field(repr=False)

    def __str__(self) -> str:
        kind = "encoder-decoder" if self.encoder_decoder else "decoder-only"
        return f"the {kind} target with {VOCAB} token ids"

    @property
    def encoder_decoder(self) -> bool:
        """Whether the target has an encoder."""
        return self.loaded.encoder_decoder

    def changed(self) -> list[str]:
        """Return the names of what has changed in the model and its tokenizer since they were built."""
        return changed_state(self.state, self.loaded.model, self.loaded.tokenizer, self.loaded.features)

    def begin(self, prompt: Sequence[int] = PROMPT) -> list[int]:
        """Return the first tokens of a row: the prompt or, with an encoder, the start token."""
        return list(prompt) if self.loaded.start_id is None else [self.loaded.start_id]

    def hidden_states(
        self, layers: Sequence[int], rows: Sequence[Sequence[int]], sources: Sequence[Sequence[int]]
    ) -> dict[int, Tensor]:
        """Return the hidden states of a request, from forward passes without a cache.

        Args:
            layers: The layers that a drafter names.
            rows: The committed tokens of each row, the last of which the target has not processed.
            sources: With an encoder, the source of each row.

        Returns:
            At `LAST_HIDDEN`, the states that predicted each row's last token, `[B, D]`; at each layer its outputs,
            `[B, T, D]`, NaN after the end of a row. Nothing if a drafter names no layers, or if the target has
            processed nothing before a start token.
        """
        features = self.loaded.features
        if not layers or features is None or min(map(len, rows)) < 2:
            return {}
        inner = [layer for layer in layers if layer != LAST_HIDDEN]
        texts = [(tuple(row[:-1]), tuple(source)) for row, source in zip(rows, sources, strict=True)]
        read: dict[tuple[tuple[int, ...], tuple[int, ...]], dict[int, Tensor]] = {}
        with torch.inference_mode():
            for text, source in dict.fromkeys(texts):
                with features.capture() as captured, features.capture_layers(inner) as states:
                    uncached_logits(self.loaded, [text], source)
                read[text, source] = {layer: state[0] for layer, state in states.items()}
                read[text, source][LAST_HIDDEN] = captured[0][0, -1]
            of_rows = [read[text] for text in texts]
            return {LAST_HIDDEN: torch.stack([states[LAST_HIDDEN] for states in of_rows])} | {
                layer: pad_sequence(
                    [states[layer] for states in of_rows], batch_first=True, padding_value=math.nan
                )
                for layer in inner
            }


_TINY_TARGETS: dict[tuple[bool, str, bool], TinyTarget] = {}


def tiny_target(encoder_decoder: bool = False, device: str = "cpu", *, tokenizer: bool = False) -> TinyTarget:
    """Return a tiny target. Each is built once per process.

    Args:
        encoder_decoder: Whether it has an encoder.
        device: Device of the model.
        tokenizer: Whether it has a tokenizer, which writes each token as its number.
    """
    key = encoder_decoder, device, tokenizer
    if key not in _TINY_TARGETS:
        loaded = tiny_loaded_model(device, encoder_decoder=encoder_decoder)
        if tokenizer:
            loaded = replace(loaded, tokenizer=number_tokenizer(loaded.vocab_size))
        state = model_state(loaded.model, loaded.tokenizer, loaded.features)
        _TINY_TARGETS[key] = TinyTarget(loaded, loaded.info(), state)
    return _TINY_TARGETS[key]


def discard_modified() -> None:
    """Drop tiny targets that a plugin has changed. They are built again when they are next needed."""
    for key, target in list(_TINY_TARGETS.items()):
        if target.changed():
            del _TINY_TARGETS[key]


def tiny_loaded_model(device: str = "cpu", *, encoder_decoder: bool = False, seed: int = 0) -> LoadedModel:
    """Return a random model small enough to enumerate. Its continuations have about 4 of 5 nats of entropy."""
    config = t5_config(VOCAB) if encoder_decoder else gpt2_config(VOCAB, pad_token_id=None)
    return wrap_model(random_model(config, seed, sharpness=0.8).to(torch.device(device)))


def number_tokenizer(vocab_size: int) -> Any:
    """Return a tokenizer whose words are the token ids, separated by spaces."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(WordLevel({str(token): token for token in range(vocab_size)}, unk_token="0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=str(EOS), unk_token="0")


@torch.inference_mode()
def uncached_logits(
    model: LoadedModel, rows: Sequence[Sequence[int]], source: Sequence[int] | Tensor = PROMPT
) -> Tensor:
    """Return the logits `[B, T, V]` after each token of some rows, from one forward pass without a cache.

    Args:
        model: The model.
        rows: B rows of T tokens; the decoder's tokens where there is an encoder.
        source: The encoder's input, or what it gave, `[S, D]`, where there is an encoder.
    """
    ids = torch.tensor([list(row) for row in rows], device=model.device)
    # Without a mask, transformers warns about tokens that equal the padding id.
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if isinstance(source, Tensor):
        encoded = BaseModelOutput(last_hidden_state=source.expand(len(rows), -1, -1))
        inputs = {"encoder_outputs": encoded, "decoder_input_ids": ids}
    elif model.encoder_decoder:
        sources = torch.tensor([list(source)] * len(rows), device=model.device)
        inputs = {"input_ids": sources, "attention_mask": torch.ones_like(sources), "decoder_input_ids": ids}
    logits: Tensor = model.model(**inputs, use_cache=False).logits
    return logits
