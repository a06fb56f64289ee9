"""Quantization while a model is loaded: from the mapping of a study to the config object of transformers."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING

from specdec_core.interface.errors import ModelError, unknown_name
from specdec_core.models.packages import require

_PACKAGES = {"bitsandbytes": ("bitsandbytes", "accelerate"), "torchao": ("torchao",)}
_CALIBRATED = ("gptq", "higgs")
"""Methods that need data or hours, although transformers does not declare it."""


def quantization_settings(settings: Any) -> Any:
    """Return the `quantization_config` argument of `from_pretrained`.

    Args:
        settings: None, a config of transformers, which is returned unchanged, or a mapping with its arguments and
            `quant_method`, which may be omitted for bitsandbytes (`load_in_4bit`, `load_in_8bit`). For torchao,
            `quant_type` is the name of a class such as `Int8WeightOnlyConfig`, or a mapping of `name` and its
            arguments.

    Raises:
        ModelError: The method or a key is unknown, its package is missing, or it cannot quantize while loading.
    """
    if not isinstance(settings, Mapping):
        return settings
    method = _method(settings)
    config = AUTO_QUANTIZATION_CONFIG_MAPPING[method]
    _check_keys(f"key of quantization_config for {settings.get('quant_method', 'bitsandbytes')}", settings, config)
    arguments = {key: value for key, value in settings.items() if key != "quant_method"}
    try:
        if method == "torchao":
            arguments["quant_type"] = _torchao_type(settings.get("quant_type"))
        return config(**arguments)
    except (TypeError, ValueError, ImportError) as error:
        raise ModelError(f"quantization_config: {error}") from error


def _method(settings: Mapping[str, Any]) -> str:
    """Return the method under its name in transformers' tables."""
    bits = [f"load_in_{bits}bit" for bits in (4, 8) if settings.get(f"load_in_{bits}bit")]
    given = settings.get("quant_method", "bitsandbytes" if bits else None)
    names = {name.removesuffix("_4bit").removesuffix("_8bit") for name in AUTO_QUANTIZER_MAPPING}
    if given is None:
        raise ModelError(
            "quantization_config: missing key 'quant_method'. For bitsandbytes, load_in_4bit: true or "
            f"load_in_8bit: true is enough. Available: {', '.join(sorted(names))}."
        )
    if given not in names:
        raise ModelError(f"quantization_config: {unknown_name('quant_method', str(given), names)}")
    if given == "bitsandbytes":
        if len(bits) != 1:
            raise ModelError("quantization_config: set one of load_in_4bit and load_in_8bit to true.")
        require_packages("bitsandbytes")
        return f"bitsandbytes_{bits[0][-4:]}"
    if given in _CALIBRATED or AUTO_QUANTIZER_MAPPING[given].requires_calibration:
        raise ModelError(
            f"quantization_config: {given} needs calibration data, so it cannot quantize a model while loading "
            "it. Name a checkpoint that is already quantized as `model`, without `quantization_config`."
        )
    require_packages(str(given))
    return str(given)


def require_packages(method: str) -> None:
    """Check that the packages of a quantization method are installed, if this project has an extra for them.

    Args:
        method: The `quant_method` of a config. For others than bitsandbytes and torchao, transformers checks.

    Raises:
        ModelError: One is missing.
    """
    for package in _PACKAGES.get(method, ()):
        require(package, f"quantization with {method}", f"specdec-core[{method}]")


def is_quantized(config: Any) -> bool:
    """Return whether a checkpoint's weights are stored quantized."""
    return getattr(config, "quantization_config", None) is not None


def check_unquantized(model: str, config: Any, given: Any) -> None:
    """Check that a checkpoint is not quantized twice; transformers would ignore most of the settings.

    Args:
        model: Its name for messages.
        config: Its config.
        given: The `quantization_config` that was asked for, or None.

    Raises:
        ModelError: The checkpoint is already quantized, or the package that did is missing.
    """
    if not is_quantized(config):
        return
    stored = config.quantization_config
    method = stored.get("quant_method") if isinstance(stored, Mapping) else stored.quant_method
    if given is not None:
        raise ModelError(f"{model}: these weights are already quantized ({method}); remove `quantization_config`.")
    require_packages(str(getattr(method, "value", method)))


def _check_keys(what: str, given: Iterable[str], function: Any) -> None:
    """Reject keys that a class does not take, many of which transformers would ignore."""
    parameters = inspect.signature(function).parameters.values()
    known = [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]
    for key in given:
        if key not in (*known, "quant_method"):
            raise ModelError(f"quantization_config: {unknown_name(what, key, known)}")


def _torchao_type(given: Any) -> Any:
    """Return the config object of torchao that `quant_type` names."""
    import torchao.quantization as torchao
    from torchao.core.config import AOBaseConfig

    names = [
        name
        for name, value in vars(torchao).items()
        if isinstance(value, type) and issubclass(value, AOBaseConfig) and value is not AOBaseConfig
    ]
    settings = dict(given) if isinstance(given, Mapping) else {"name": given}
    name = settings.pop("name", None)
    if name not in names:
        raise ModelError(f"quantization_config: {unknown_name('quant_type', str(name), names)}")
    _check_keys(f"argument of {name}", settings, getattr(torchao, name))
    return getattr(torchao, name)(**settings)
