"""Models of transformers that are in memory, with the properties that decoding needs."""

from __future__ import annotations

from contextlib import nullcontext
from threading import RLock
from typing import Any

from transformers import PreTrainedModel

from specdec_core.interface.errors import ModelError
from specdec_core.models.features import features_of
from specdec_core.models.load.adapter import without_wrapper
from specdec_core.models.load.model_outline import read_eos_ids, read_start_id
from specdec_core.models.load.probe import probe_model
from specdec_core.models.loaded import LoadedModel, inspect_family, vocab_size_of


def wrap_model(
    model: PreTrainedModel, tokenizer: Any = None, name: str | None = None, *, start_id: int | None = None
) -> LoadedModel:
    """Wrap a model that is already in memory.

    A model whose family is not in `TESTED_FAMILIES`, or that is quantized, spread over devices or has another
    attention than torch's, is probed first: two short sequences are decoded with rejections and compared with
    uncached forward passes.

    Args:
        model: A Hugging Face decoder-only or encoder-decoder model with a language-model head. It is set to
            evaluation mode. A `PeftModel` with an adapter of the weights is unwrapped.
        tokenizer: Its tokenizer, required for prompts in text.
        name: Name for messages; the class name if None.
        start_id: With an encoder, the decoder's first token where the model's configs set neither
            `decoder_start_token_id` nor `bos_token_id`.

    Raises:
        ModelError: The model cannot be decoded exactly. The message states the reason.
    """
    name = name or type(model).__name__
    model = without_wrapper(model).eval()
    _check_usable(model, name)
    family = inspect_family(model)
    text_config = model.config.get_text_config(decoder=True)
    generation = getattr(model, "generation_config", None)
    start = read_start_id(generation, model.config)
    start = start_id if start is None else start
    head = model.get_output_embeddings()
    if family.encoder_decoder and start is None:
        raise ModelError(
            f"{name}: its config has neither decoder_start_token_id nor bos_token_id; set "
            "`model.generation_config.decoder_start_token_id`."
        )
    loaded = LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=name,
        family=family,
        vocab_size=vocab_size_of(head, text_config),
        eos_ids=read_eos_ids(name, generation, text_config),
        start_id=start if family.encoder_decoder else None,
        features=features_of(model),
        lock=RLock()
        if family.rotary_switch is not None or hasattr(text_config, "expert_capacity")
        else nullcontext(),
    )
    return probe_model(loaded)


def _check_usable(model: Any, name: str) -> None:
    """Reject what is not a model, or gives no logits, or logits that depend on the other tokens of a forward pass.

    Raises:
        ModelError: With the reason.
    """
    if not hasattr(model, "config"):
        raise ModelError(f"{name} is not a model of transformers; if it wraps one (DataParallel), pass `.module`.")
    if model.config.return_dict is False:
        raise ModelError(f"{name}: its config has return_dict=False; set `model.config.return_dict = True`.")
    torch_ao = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")
    for layer in model.modules():
        scheme = getattr(layer, "quantization_scheme", None)  # of compressed-tensors
        given = getattr(scheme, "input_activations", None)
        one_scale = given is not None and given.dynamic is True and given.strategy == "tensor"
        if one_scale or type(layer).__module__.startswith(torch_ao):
            raise ModelError(
                f"{name}: the activations of a {type(layer).__name__} layer are quantized with one scale for "
                "all tokens of a forward pass, so a draft changes the logits before it. Use a checkpoint with a "
                "scale for each token, or quantize with torchao or bitsandbytes."
            )
