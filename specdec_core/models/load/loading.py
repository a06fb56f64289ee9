"""Loading of Hugging Face models from a folder, the hub, or the built-in ones."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
from typing import Any, Literal, get_args

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    PreTrainedModel,
)

from specdec_core.interface.errors import ModelError, unknown_name
from specdec_core.interface.files import input_path
from specdec_core.interface.settings import AttentionName, check_attention
from specdec_core.models.device import parse_device, parse_dtype
from specdec_core.models.fast.compiling import compile_as_set
from specdec_core.models.fast.packing import pack_as_set
from specdec_core.models.features import features_of
from specdec_core.models.load.adapter import (
    read_adapter,
    refuse_adapter_on_hub,
    with_adapter,
    without_wrapper,
)
from specdec_core.models.load.checkpoint import (
    check_complete,
    check_size,
    check_weight_files,
    quiet_loading,
    without_progress_bar,
)
from specdec_core.models.load.locate import locate, read_tokenizer, reading_model
from specdec_core.models.load.model_outline import read_eos_ids, read_start_id
from specdec_core.models.load.probe import probe_model
from specdec_core.models.load.quantization import check_unquantized, is_quantized, quantization_settings
from specdec_core.models.loaded import LoadedModel, inspect_family
from specdec_core.models.packages import require
from specdec_core.models.variants import with_exact_shapes

_FLASH = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}
"""Packages of attention implementations that PyTorch does not have."""


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
    return probe_model(_wrapped(model, tokenizer, name or type(model).__name__, start_id=start_id))


def _wrapped(model: Any, tokenizer: Any, name: str, start_id: int | None = None) -> LoadedModel:
    """Return a model with the properties that decoding needs; see `wrap_model`."""
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
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=name,
        family=family,
        vocab_size=_vocab_size(head, text_config),
        eos_ids=read_eos_ids(name, generation, text_config),
        start_id=start if family.encoder_decoder else None,
        features=features_of(model),
        lock=nullcontext() if family.rotary_switch is None else RLock(),
    )


def _check_usable(model: Any, name: str) -> None:
    """Reject what is not a model, or gives no logits, or logits that depend on the other tokens of a forward pass.

    Raises:
        ModelError: With the reason.
    """
    if not hasattr(model, "config"):
        raise ModelError(f"{name} is not a model of transformers; if it wraps one (DataParallel), pass `.module`.")
    if model.config.return_dict is False:
        raise ModelError(f"{name}: its config has return_dict=False; set `model.config.return_dict = True`.")
    for layer in model.modules():
        if type(layer).__module__.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")):
            raise ModelError(
                f"{name}: torch.ao quantizes the activations of a {type(layer).__name__} layer with one scale for "
                "all tokens of a forward pass, so a draft changes the logits before it. Quantize with torchao or "
                "bitsandbytes."
            )


def _vocab_size(head: Any, config: Any) -> int:
    """Return V. Quantized weights may have another shape than the layer."""
    if head is None:
        return int(config.vocab_size)
    return int(getattr(head, "out_features", None) or head.weight.shape[0])


def load_model(
    model: str | Path,
    *,
    dtype: str = "auto",
    device: str = "auto",
    device_map: str | Mapping[str, Any] | None = None,
    max_memory: Mapping[Any, int | str] | None = None,
    offload_folder: str | Path | None = None,
    revision: str | None = None,
    subfolder: str | None = None,
    attn_implementation: str | None = None,
    quantization_config: Any = None,
    adapter: str | Path | None = None,
    trust_remote_code: bool = False,
    packed: bool | Literal["auto", "int8"] = "auto",
    compile: bool | Literal["auto"] = "auto",  # noqa: A002  (as in a study)
    exact_shapes: bool | int = False,
    folder: Path = Path(),
) -> LoadedModel:
    """Load a model and its tokenizer.

    Args:
        model: A folder, a hub name, or a built-in model such as `builtin:target`.
        dtype: `auto` (float32 on a CPU, where half precision is slow, else as stored), or the name of a torch
            dtype.
        device: `auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:N`.
        device_map: How to spread the weights over several devices, instead of `device`; needs accelerate.
        max_memory: What each device may hold under `device_map="auto"`: sizes by `cpu` or a GPU's number.
        offload_folder: Folder for weights that the device map leaves on disk.
        revision: Branch, tag or commit on the hub.
        subfolder: Folder of the model within `model`.
        attn_implementation: `eager`, `sdpa`, `flash_attention_2` or `flash_attention_3`; None is the model's
            default.
        quantization_config: A quantization config of transformers, or a mapping as in a study.
        adapter: A PEFT adapter, a folder or a hub name; merged into the weights unless they are quantized.
        trust_remote_code: Run code from the model's repository.
        packed: Pack the weights for a CPU; see `pack`. `auto` packs where that works and memory allows;
            `int8` rounds the weights to 8 bits (see `quantize`).
        compile: Compile short forward passes; see `compile_model`. `auto` does not, as yet.
        exact_shapes: Run the passes of all steps over the same number of columns; see `with_exact_shapes`.
        folder: Base for relative paths.

    Raises:
        ModelError: The model cannot be found, loaded, packed, compiled, or decoded exactly, or a setting cannot
            work or needs a package that is not installed.
    """
    _check_devices(device, device_map, max_memory, offload_folder)
    location, options = locate(str(model), folder, subfolder, revision, trust_remote_code=trust_remote_code)
    torch_device = parse_device(device)
    torch_dtype = parse_dtype(dtype, torch_device)
    found = None if adapter is None else read_adapter(str(adapter), folder)
    _check_attention(attn_implementation, torch_device, torch_dtype)
    memory = max_memory and {int(k) if str(k).isdecimal() else k: v for k, v in max_memory.items()}
    offloaded = None if offload_folder is None else str(input_path(offload_folder, folder, ModelError))
    settings: dict[str, Any] = {
        "dtype": torch_dtype,
        "device_map": device_map,
        "max_memory": memory,
        "offload_folder": offloaded,
        "attn_implementation": attn_implementation,
        "quantization_config": quantization_settings(quantization_config),
    }
    loaded, placed = _read(str(model), location, options, settings, torch_device)
    name = str(model)
    if found is not None:
        loaded = with_adapter(loaded, found)
        name = f"{name} + {found.name}"
    if not placed:
        loaded = loaded.to(torch_device)
    wrapped = _wrapped(loaded, read_tokenizer(location, options, subfolder), name)
    return with_exact_shapes(compile_as_set(pack_as_set(probe_model(wrapped), packed), compile), exact_shapes)


def _read(
    model: str, location: str, options: Mapping[str, Any], settings: dict[str, Any], device: torch.device
) -> tuple[Any, bool]:
    """Read a model with `from_pretrained`; return it, and whether its weights are where they will be."""
    quantization, dtype = settings["quantization_config"], settings["dtype"]
    with reading_model(model, location):
        if location == model:  # a local one raised an error when it was located
            refuse_adapter_on_hub(location, options)
        config = AutoConfig.from_pretrained(location, **options)
        if settings["attn_implementation"] is None:
            # A config may name an implementation, too. The hub's are code.
            _check_attention(config._attn_implementation, device, dtype)
        check_unquantized(model, config, quantization)
        if is_quantized(config) or quantization is not None:
            # Most methods quantize on the device where the weights will be.
            where = str(device) if find_spec("accelerate") else None
            settings = {**settings, "device_map": settings["device_map"] or where}
        auto_class = _auto_class(config)
        given = {name: value for name, value in settings.items() if value is not None}
        check_weight_files(model, location, config, options)
        check_size(model, location, config, options)
        with without_progress_bar(), quiet_loading():
            loaded, info = auto_class.from_pretrained(
                location,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # to name them all
                output_loading_info=True,
                **given,
                **options,
            )
    check_complete(model, info)
    return loaded, "device_map" in given


def _auto_class(config: Any) -> Any:
    """Return the class of transformers that loads a model with a language-model head."""
    if config.is_encoder_decoder:
        return AutoModelForSeq2SeqLM
    # Models that take images, too, are decoded with text. Some are in both mappings, and some in this one only.
    images = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return (
        AutoModelForImageTextToText
        if images and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING
        else AutoModelForCausalLM
    )


def _check_devices(device: str, device_map: Any, max_memory: Any, offload_folder: Any) -> None:
    """Reject settings of devices that contradict each other.

    Raises:
        ModelError: With the reason, or without accelerate, which spreads weights over devices.
    """
    if device_map is None:
        for name, value in (("max_memory", max_memory), ("offload_folder", offload_folder)):
            if value is not None:
                raise ModelError(f"{name!r} requires 'device_map', e.g. device_map='auto'.")
        return
    if device != "auto":
        raise ModelError("'device' and 'device_map' are both given; use one of them.")
    require("accelerate", "device_map", "specdec-core[accelerate]")


def _check_attention(name: str | None, device: torch.device, dtype: torch.dtype | str) -> None:
    """Reject an attention implementation that cannot run here.

    Raises:
        ModelError: With the reason, or without the package that has it.
    """
    try:
        check_attention(name)
    except ValueError as error:
        raise ModelError(f"attn_implementation: {error}.") from error
    names = get_args(AttentionName)
    if name is not None and name not in names:
        raise ModelError(unknown_name("attn_implementation", name, names))
    if name is None or name not in _FLASH:
        return
    if device.type == "cpu" or dtype == torch.float32:
        where = "the model would run on a CPU" if device.type == "cpu" else "dtype is float32"
        raise ModelError(
            f"attn_implementation: {name} runs on a GPU, in bfloat16 or float16, and {where}. Use sdpa, or change "
            "`device` and `dtype`."
        )
    require(_FLASH[name], f"attn_implementation {name}", "flash-attn --no-build-isolation")
