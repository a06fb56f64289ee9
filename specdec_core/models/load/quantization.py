"""Quantization while a model is loaded: from the mapping of a study to the config object of transformers."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from transformers import TorchAoConfig
from transformers.quantizers.auto import AutoQuantizationConfig

from specdec_core.interface.errors import ModelError, unknown_name
from specdec_core.models.packages import require

_PACKAGES = {"bitsandbytes": ("bitsandbytes", "accelerate"), "torchao": ("torchao",)}


def quantization_settings(settings: Mapping[str, Any] | None) -> Any:
    """Return the `quantization_config` argument of `from_pretrained`.

    Args:
        settings: None, or a mapping with `quant_method` and the arguments of its config in transformers. For
            bitsandbytes, `load_in_4bit` or `load_in_8bit` is enough. For torchao, `quant_type` is the name of a
            class such as `Int8WeightOnlyConfig`, or a mapping of `name` and its arguments.

    Raises:
        ModelError: The method or a key is unknown, or its package is missing.
    """
    if settings is None:
        return None
    few_bits = settings.get("load_in_4bit") or settings.get("load_in_8bit")
    method = settings.get("quant_method", "bitsandbytes" if few_bits else None)
    _require_packages(method)
    arguments = {key: value for key, value in settings.items() if key != "quant_method"}
    try:
        if method == "torchao":
            config = TorchAoConfig(**{**arguments, "quant_type": _torchao_type(settings.get("quant_type"))})
        else:
            config = AutoQuantizationConfig.from_dict(dict(settings))
    except (TypeError, ValueError, ImportError) as error:
        raise ModelError(f"quantization_config: {error}") from error
    _check_keys(f"key of quantization_config for {method}", arguments, type(config))
    return config


def _require_packages(method: str | None) -> None:
    for package in _PACKAGES.get(str(method), ()):
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
    _require_packages(str(getattr(method, "value", method)))


def _check_keys(what: str, given: Iterable[str], function: Any) -> None:
    """Reject keys that a class does not take, many of which transformers would ignore."""
    parameters = inspect.signature(function).parameters.values()
    known = [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]
    for key in given:
        if key not in known:
            raise ModelError(f"quantization_config: {unknown_name(what, key, known)}")


def _torchao_type(given: Any) -> Any:
    """Return the config object of torchao that `quant_type` names."""
    import torchao.quantization as torchao

    settings = dict(given) if isinstance(given, Mapping) else {"name": given}
    name = str(settings.pop("name", None))
    names = [name for name in vars(torchao) if name.endswith("Config")]
    if name not in names:
        raise ModelError(f"quantization_config: {unknown_name('quant_type', name, names)}")
    _check_keys(f"argument of {name}", settings, getattr(torchao, name))
    return getattr(torchao, name)(**settings)
