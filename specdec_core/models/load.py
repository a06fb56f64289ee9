"""Load Hugging Face models from a folder, the hub, or the built-in ones."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as hf_logging

from specdec_core.interface.errors import ModelError, unknown_name
from specdec_core.interface.inputs import input_path
from specdec_core.interface.settings import AttentionName, check_attention
from specdec_core.models.adapter import read_adapter, refuse_adapter_folder, with_adapter
from specdec_core.models.device import parse_device, parse_dtype
from specdec_core.models.features import features_of
from specdec_core.models.loaded import LoadedModel, inspect_family
from specdec_core.models.packages import require
from specdec_core.models.packing import pack_as_set
from specdec_core.models.probe import probe_model
from specdec_core.models.quantization import quantization_settings, require_packages
from specdec_core.models.resolve import model_folder

_FLASH = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}
"""Packages of attention implementations that PyTorch does not have."""


def wrap_model(model: PreTrainedModel, tokenizer: Any = None, name: str | None = None) -> LoadedModel:
    """Wrap a model that is already in memory.

    A model whose family is not in `TESTED_FAMILIES`, or that is quantized, spread over devices or has another
    attention than torch's, is probed first: two short sequences are decoded with rejections and compared with
    uncached forward passes.

    Args:
        model: A Hugging Face decoder-only or encoder-decoder model with a language-model head.
        tokenizer: Its tokenizer, required for prompts in text.
        name: Name for messages; the class name if None.

    Raises:
        ModelError: The model cannot be decoded exactly. The message states the reason.
    """
    model.eval()
    family = inspect_family(model)
    text_config = model.config.get_text_config(decoder=True)
    generation = getattr(model, "generation_config", None)
    eos = _first_setting("eos_token_id", generation, text_config)
    start = _first_setting("decoder_start_token_id", generation, model.config)
    head = model.get_output_embeddings()
    if family.encoder_decoder and start is None:
        raise ModelError(f"{name or type(model).__name__}: its config has no decoder_start_token_id; add one.")
    loaded = LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=name or type(model).__name__,
        family=family,
        vocab_size=_vocab_size(head, text_config),
        eos_ids=() if eos is None else tuple(eos) if isinstance(eos, (list, tuple)) else (int(eos),),
        start_id=start if family.encoder_decoder else None,
        features=features_of(model),
    )
    return probe_model(loaded)


def _vocab_size(head: Any, config: Any) -> int:
    """Return V. Quantized weights may have another shape than the layer."""
    if head is None:
        return int(config.vocab_size)
    return int(getattr(head, "out_features", None) or head.weight.shape[0])


def _first_setting(name: str, *configs: Any) -> Any:
    """Return a setting of the first config that has it, or None."""
    return next((value for config in configs if (value := getattr(config, name, None)) is not None), None)


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
    packed: bool | Literal["auto"] = "auto",
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
        packed: Pack the weights for a CPU; see `pack`. `auto` packs where that works and memory allows.
        folder: Base for relative paths.

    Raises:
        ModelError: The model cannot be found, loaded, packed, or decoded exactly, or a setting cannot work or
            needs a package that is not installed.
    """
    _check_devices(device, device_map, max_memory, offload_folder)
    location, options = _locate(str(model), folder, subfolder)
    options["trust_remote_code"] = trust_remote_code
    if revision is not None:
        options["revision"] = revision
    torch_device = parse_device(device)
    torch_dtype = parse_dtype(dtype, torch_device)
    found = None if adapter is None else read_adapter(str(adapter), folder)
    _check_attention(attn_implementation, torch_device, torch_dtype)
    settings: dict[str, Any] = {
        "dtype": torch_dtype,
        "device_map": device_map,
        "max_memory": max_memory and {int(k) if str(k).isdecimal() else k: v for k, v in max_memory.items()},
        "offload_folder": None if offload_folder is None else str(input_path(offload_folder, folder, ModelError)),
        "attn_implementation": attn_implementation,
        "quantization_config": quantization_settings(quantization_config),
    }
    try:
        config = AutoConfig.from_pretrained(location, **options)
        _check_quantization(str(model), config, quantization_config)
        if _is_quantized(config) or quantization_config is not None:
            # Most methods quantize on the device where the weights will be.
            settings["device_map"] = device_map or (str(torch_device) if find_spec("accelerate") else None)
        auto_class = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        given = {name: value for name, value in settings.items() if value is not None}
        with without_progress_bar(), _without_tied_weights_warning():
            loaded = auto_class.from_pretrained(location, use_safetensors=True, **given, **options)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, SafetensorError) as error:
        raise ModelError(_loading_failed(str(model), location, error)) from error
    name = str(model)
    if found is not None:
        loaded = with_adapter(loaded, found)
        name = f"{name} + {found.name}"
    if "device_map" not in given:
        loaded = loaded.to(torch_device)
    wrapped = wrap_model(loaded, _tokenizer(location, options, subfolder), name)
    return pack_as_set(wrapped, packed)


def _check_devices(device: str, device_map: Any, max_memory: Any, offload_folder: Any) -> None:
    """Refuse settings of devices that contradict each other.

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
    """Refuse an attention implementation that cannot run here.

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


def _is_quantized(config: Any) -> bool:
    return getattr(config, "quantization_config", None) is not None


def _check_quantization(model: str, config: Any, given: Any) -> None:
    """Refuse to quantize a checkpoint twice; transformers would ignore most of the settings.

    Raises:
        ModelError: The checkpoint is already quantized, or the package that did is missing.
    """
    if not _is_quantized(config):
        return
    stored = config.quantization_config
    method = stored.get("quant_method") if isinstance(stored, Mapping) else stored.quant_method
    if given is not None:
        raise ModelError(f"{model}: these weights are already quantized ({method}); remove `quantization_config`.")
    require_packages(str(getattr(method, "value", method)))


def load_vocabulary(model: str | Path, *, folder: Path = Path()) -> tuple[Any, int]:
    """Return a model's tokenizer (or None) and its vocabulary size V, without loading its weights.

    Args:
        model: A folder, a hub name, or a built-in model.
        folder: Base for relative paths.

    Raises:
        ModelError: The folder, its config or its tokenizer cannot be read.
    """
    location, options = _locate(str(model), folder)
    try:
        config = AutoConfig.from_pretrained(location, **options)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(_loading_failed(str(model), location, error)) from error
    return _tokenizer(location, options), int(config.get_text_config(decoder=True).vocab_size)


@contextmanager
def without_progress_bar() -> Iterator[None]:
    """Hide the progress bars that transformers shows for each model it loads or saves."""
    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()


@contextmanager
def _without_tied_weights_warning() -> Iterator[None]:
    """Hide the transformers warning about an output embedding that is not tied, for checkpoints that store both.

    transformers reads every T5 config as tied, including T5 1.1, which is not. It then loads both weights
    correctly, but recommends a setting that the config already has.
    """

    def keep(record: logging.LogRecord) -> bool:
        return "NOT tie" not in record.getMessage()

    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def _locate(model: str, folder: Path, subfolder: str | None = None) -> tuple[str, dict[str, Any]]:
    """Return the arguments for `from_pretrained`: an absolute folder or a hub name, and where to look in it."""
    location = model_folder(model, folder)
    if location is None:
        return model, {} if subfolder is None else {"subfolder": subfolder}
    place = location / (subfolder or "")
    refuse_adapter_folder(model, place)
    if not (place / "config.json").is_file():
        within = f" {subfolder!r}" if subfolder else ""
        raise ModelError(
            f"{model}: the folder{within} has no config.json. Pass a folder written by save_pretrained(), with "
            f"config.json, model.safetensors and the tokenizer's files.{_near(location)}"
        )
    return str(place), {}


def _near(location: Path) -> str:
    """Return a hint for a folder without a config: the folders inside that have one."""
    if not location.is_dir():
        return ""
    models = sorted(str(each.parent.relative_to(location)) for each in location.glob("*/config.json"))
    return f" These subfolders have one: {', '.join(models)}; set `subfolder`." if models else ""


def _loading_failed(model: str, location: str, error: Exception) -> str:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, ImportError):
        return f"{model}: it needs a package that cannot be imported: {reason}"
    if Path(location).is_dir():
        # A ValueError is about a setting or the config, the others are about files.
        advice = "Pass a folder written by save_pretrained(); if a file is incomplete, copy the folder again."
        return f"{model}: the folder cannot be loaded: {reason}" + f" {advice}" * (
            not isinstance(error, ValueError)
        )
    return (
        f"{model}: there is no such folder, and loading it from the hub failed: {reason} "
        "Check the name, the network (HF_HUB_OFFLINE?) and, for gated models, that you are logged in."
    )


_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")


def _tokenizer(location: str, options: Mapping[str, Any], subfolder: str | None = None) -> Any:
    """Return a model's tokenizer, or None. That of a model in a subfolder may be in the folder around it."""
    if Path(location).is_dir():
        around = [] if subfolder is None else [Path(location).parents[len(Path(subfolder).parts) - 1]]
        for folder in (Path(location), *around):
            if any((folder / name).is_file() for name in _TOKENIZER_FILES):
                return _load_tokenizer(str(folder), options)
        # A model without a tokenizer decodes token ids. For some families, AutoTokenizer would return an empty
        # one.
        return None
    try:
        return _load_tokenizer(location, options)
    except ModelError:
        if subfolder is None:
            raise
        return _load_tokenizer(location, {key: value for key, value in options.items() if key != "subfolder"})


def _load_tokenizer(location: str, options: Mapping[str, Any]) -> Any:
    try:
        return AutoTokenizer.from_pretrained(location, **options)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise ModelError(f"{location}: the tokenizer cannot be loaded: {error}") from error
