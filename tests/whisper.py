"""Tiny random Whisper models, and what they hear."""

import torch
import transformers

from specdec_core.testing.harness.tiny_target import random_model
from tests.tiny import BOTH_SIDES

VOCAB, END, START, ENGLISH, GERMAN, TRANSLATE, TRANSCRIBE, PREVIOUS, NO_TIMESTAMPS = 49, *range(30, 37), 39
"""Text has the ids below `END`, timestamps those above `NO_TIMESTAMPS`."""
UNTIMED = [*range(START, VOCAB)]
AUDIO = torch.randn(3, 4, 16, generator=torch.Generator().manual_seed(3))
"""`[B, M, T]`: eight positions each."""


def whisper(vocab=VOCAB, end=END, start=START, sharpness=4.0, positions=10):
    """Return a random model whose text depends on audio and position, and does not loop."""
    ids = {"vocab_size": vocab, "bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
    sizes = {"d_model": 32, "num_mel_bins": 4, "max_source_positions": 8, "max_target_positions": 48, **BOTH_SIDES}
    suppressed = {"suppress_tokens": None, "begin_suppress_tokens": None, "tie_word_embeddings": False}
    config = transformers.WhisperConfig(**ids, **sizes, **suppressed, decoder_start_token_id=start)
    model = random_model(config, sharpness=sharpness, kind=transformers.WhisperForConditionalGeneration)
    with torch.no_grad():
        model.model.encoder.conv1.weight.mul_(10)
        model.model.encoder.embed_positions.weight.mul_(0.1)
        model.model.decoder.embed_positions.weight.mul_(positions)
        for layer in model.model.decoder.layers:
            layer.encoder_attn.out_proj.weight.mul_(4)
    return model


def distilled(model, folder, change=0.0, left=(), **settings):
    """Save a model with the same encoder, or a changed one, and a decoder of one layer; return its folder.

    The modules in `left` are left to the target.
    """
    config = type(model.config)(**{**model.config.to_dict(), "decoder_layers": 1, **settings})
    student = random_model(config, seed=1, kind=type(model))
    student.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad():
        student.model.encoder.layer_norm.bias.add_(change)
    return saved(student, folder, left)


def saved(model, folder, left=()):
    """Save a model without the modules that it leaves to the target; return its folder."""
    model.config.modules_of_target = [*left]
    weights = model.state_dict().items()
    kept = {name: one for name, one in weights if not name.startswith(tuple(f"{module}." for module in left))}
    model.save_pretrained(folder, state_dict=kept)
    return str(folder)


def speech():
    """Return a model with a generation config like those of published ones."""
    model = whisper()
    ends = {"decoder_start_token_id": START, "eos_token_id": END, "pad_token_id": END, "max_length": 20}
    tasks = {"lang_to_id": {"<|en|>": ENGLISH, "<|de|>": GERMAN}, "task_to_id": {"transcribe": TRANSCRIBE}}
    times = {"no_timestamps_token_id": NO_TIMESTAMPS, "max_initial_timestamp_index": 4}
    # A timestamp that is early in a segment would be followed by the same segment, for ever.
    others = {"prev_sot_token_id": PREVIOUS, "suppress_tokens": [*range(START, NO_TIMESTAMPS), 41, 42, 43]}
    model.generation_config = transformers.GenerationConfig(
        **ends, **tasks, **times, **others, is_multilingual=True
    )
    return model
