"""Loading of Hugging Face models from a folder, the hub, or the built-in ones."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Unpack
from weakref import WeakValueDictionary

import torch
from pydantic import ValidationError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
)

from specdec_core.interface.errors import ModelError
from specdec_core.interface.files import input_path
from specdec_core.interface.settings import ModelOptions, ModelSettings, TargetConfig, check_attention
from specdec_core.models.device import parse_device, parse_dtype
from specdec_core.models.fast.compiling import compile_as_set
from specdec_core.models.fast.packing import pack_as_set
from specdec_core.models.fast.static import StaticPasses
from specdec_core.models.inflation import inflate
from specdec_core.models.load.adapter import read_adapter, refuse_adapter_on_hub, with_adapter
from specdec_core.models.load.checkpoint import (
    check_complete,
    check_weight_files,
    quiet_loading,
    with_weights_of,
    without_progress_bar,
)
from specdec_core.models.load.locate import locate, read_tokenizer, reading_model
from specdec_core.models.load.quantization import check_unquantized, is_quantized, quantization_settings
from specdec_core.models.load.resolve import model_folder
from specdec_core.models.load.wrapping import wrap_model
from specdec_core.models.loaded import LoadedModel
from specdec_core.models.packages import require
from specdec_core.models.variants import with_exact_shapes
from specdec_core.registry.validation_errors import describe

_FLASH = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}
"""Packages of attention implementations that PyTorch does not have."""
_COMPILED: WeakValueDictionary[Any, StaticPasses] = WeakValueDictionary()
"""Compiled passes that are in use, by the `_identity` of their model."""


def load_model(
    model: str | Path, *, folder: Path = Path(), trust_remote_code: bool = False, **options: Unpack[ModelOptions]
) -> LoadedModel:
    """Load a model and its tokenizer.

    Args:
        model: A folder, a hub name, or a built-in model such as `builtin:target`.
        folder: Base for relative paths.
        trust_remote_code: Run code from the model's repository.
        **options: Fields of `TargetConfig`, such as `dtype="bfloat16"` or `packed=False`.

    Raises:
        ModelError: The model cannot be found, loaded, packed, compiled, or decoded exactly, or a setting cannot
            work or needs a package that is not installed.
    """
    given: dict[str, Any] = {"model": str(model), **options}
    if options.get("adapter") is not None:
        given["adapter"] = str(options["adapter"])
    try:
        settings = TargetConfig.model_validate(given)
    except ValidationError as error:
        lines = describe(error, given, lambda *_: str(model), form="python")
        raise ModelError("\n".join(lines)) from None
    return load_as_set(settings, folder, trust_remote_code=trust_remote_code)


def load_as_set(
    settings: ModelSettings,
    folder: Path = Path(),
    *,
    trust_remote_code: bool = False,
    target: LoadedModel | None = None,
) -> LoadedModel:
    """Load a model as settings say, with what a target's settings add.

    A compiled model is shared: as long as it is in use, it is returned to whoever loads it with the same settings,
    unless its files have changed. Do not change its weights.

    Args:
        settings: Which model, and how it is loaded.
        folder: Base for relative paths.
        trust_remote_code: Run code from the model's repository.
        target: The target of a draft model, whose folder may leave weights to it.

    Raises:
        ModelError: See `load_model`.
    """
    identity = _identity(settings, folder, trust_remote_code) if settings.compile is True else None
    passes = _COMPILED.get(identity)
    if passes is not None and passes.failed is None:
        return passes.model
    loaded = wrap_model(*_read(settings, folder, trust_remote_code, target))
    if isinstance(settings, TargetConfig) and settings.inflate is not None:
        loaded = inflate(loaded, **settings.inflate.model_dump())
    loaded = compile_as_set(pack_as_set(loaded, settings.packed), settings.compile)
    # A draft model that takes weights from its target is not for another target.
    if loaded.passes is not None and not getattr(loaded.model.config, "modules_of_target", None):
        _COMPILED[identity] = loaded.passes
    return with_exact_shapes(loaded, settings.exact_shapes) if isinstance(settings, TargetConfig) else loaded


def _identity(settings: ModelSettings, folder: Path, trust_remote_code: bool) -> tuple[Any, ...]:
    """Return what a compiled model depends on, its files by their names, times and sizes."""
    fields = {*ModelSettings.model_fields, "inflate"} - {"device"}
    given = settings.model_dump_json(include=fields, exclude_none=True), str(parse_device(settings.device))
    model = model_folder(settings.model, folder)
    folders = set() if model is None else {model, model / (settings.subfolder or "")}
    if settings.adapter is not None:
        folders.add(input_path(settings.adapter, folder, ModelError))
    files = sorted(file for each in folders for file in each.glob("*") if file.is_file())
    stamps = tuple((str(file), (about := file.stat()).st_mtime_ns, about.st_size) for file in files)
    return *given, torch.get_num_threads(), trust_remote_code, stamps


def _read(
    settings: ModelSettings, folder: Path, trust_remote_code: bool, target: LoadedModel | None
) -> tuple[Any, Any, str]:
    """Return the model with its adapter, where it will run; its tokenizer, and its name."""
    name, subfolder = settings.model, settings.subfolder
    location, options = locate(name, folder, subfolder, settings.revision, trust_remote_code=trust_remote_code)
    if settings.device_map is not None:
        require("accelerate", "device_map", "specdec-core[accelerate]")
    device = parse_device(settings.device)
    dtype = parse_dtype(settings.dtype, device)
    adapter = None if settings.adapter is None else read_adapter(settings.adapter, folder)
    _check_attention(settings.attn_implementation, device, dtype)
    quantization = quantization_settings(settings.quantization_config)
    memory = settings.max_memory
    offloaded = settings.offload_folder
    given: dict[str, Any] = {
        "dtype": dtype,
        "device_map": settings.device_map,
        "max_memory": memory and {int(k) if k.isdecimal() else k: size for k, size in memory.items()},
        "offload_folder": offloaded and str(input_path(offloaded, folder, ModelError)),
        "attn_implementation": settings.attn_implementation,
        "quantization_config": quantization,
    }
    with reading_model(name, location):
        if location == name:  # a local one raised an error when it was located
            refuse_adapter_on_hub(location, options)
        config = AutoConfig.from_pretrained(location, **options)
        if settings.attn_implementation is None:
            # A config may name an implementation, too. The hub's are code.
            check_attention(config._attn_implementation)
            _check_attention(config._attn_implementation, device, dtype)
        check_unquantized(name, config, quantization)
        if is_quantized(config) or quantization is not None:
            # Most methods quantize on the device where the weights will be.
            given["device_map"] = settings.device_map or (str(device) if find_spec("accelerate") else None)
        given = {key: value for key, value in given.items() if value is not None}
        check_weight_files(name, location, config, options)
        with without_progress_bar(), quiet_loading():
            loaded, info = auto_class(config).from_pretrained(
                location,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # to name them all
                output_loading_info=True,
                **given,
                **options,
            )
            if target is not None and getattr(config, "modules_of_target", None):
                loaded, info = with_weights_of(target.model, loaded, info)
    check_complete(name, info, config)
    if adapter is not None:
        loaded = with_adapter(loaded, adapter)
        name = f"{name} + {adapter.name}"
    if "device_map" not in given:
        loaded = loaded.to(device)
    if dtype == torch.float32 and getattr(loaded, "hf_quantizer", None) is None:
        loaded = loaded.float()  # layers of FP8 checkpoints, which transformers dequantizes on a CPU, are bfloat16
    return loaded, read_tokenizer(location, options, subfolder), name


def auto_class(config: Any) -> Any:
    """Return the class of transformers that loads a model with a language-model head."""
    text = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    # Models that take images or audio, too, may have a class for text, and are loaded by that.
    others = AutoModelForSpeechSeq2Seq, AutoModelForImageTextToText
    return next((auto for auto in (text, *others) if type(config) in auto._model_mapping), text)


def _check_attention(name: str | None, device: torch.device, dtype: torch.dtype | str) -> None:
    """Reject an attention implementation that needs a GPU, half precision or a package that is not here.

    Raises:
        ModelError: With the reason.
    """
    if name is None or name not in _FLASH:
        return
    if device.type == "cpu" or dtype == torch.float32:
        where = "the model would run on a CPU" if device.type == "cpu" else "dtype is float32"
        raise ModelError(
            f"attn_implementation: {name} runs on a GPU, in bfloat16 or float16, and {where}. Use sdpa, or change "
            "`device` and `dtype`."
        )
    require(_FLASH[name], f"attn_implementation {name}", "flash-attn --no-build-isolation")
