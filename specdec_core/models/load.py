"""Loading any Hugging Face model that decodes, from a folder, a hub name or a built-in one."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers import PreTrainedModel as _PreTrainedModel
from transformers.utils import logging as library_logging

from specdec_core.errors import ModelError, unknown_name
from specdec_core.model_folder import model_folder
from specdec_core.models.family import inspect_family
from specdec_core.models.features import features_of
from specdec_core.models.loaded import LoadedModel
from specdec_core.models.packed import pack
from specdec_core.models.probe import probed


def wrap_model(model: _PreTrainedModel, tokenizer: Any = None, name: str | None = None) -> LoadedModel:
    """Take a model that is already in memory; a family not tested here is probed with two short rows.

    Args:
        model: A Hugging Face decoder-only or encoder-decoder model with a language-model head.
        tokenizer: Its tokenizer, if prompts are to be given as text.
        name: What messages should call it.

    Raises:
        ModelError: The family cannot be decoded exactly by this framework; the message says why.
    """
    model.eval()
    family = inspect_family(model)
    text_config = model.config.get_text_config(decoder=True)
    generation = getattr(model, "generation_config", None)
    eos = getattr(generation, "eos_token_id", None)
    if eos is None:
        eos = getattr(text_config, "eos_token_id", None)
    head = model.get_output_embeddings()
    start = getattr(generation, "decoder_start_token_id", None)
    if start is None:
        start = getattr(model.config, "decoder_start_token_id", None)
    if family.encoder_decoder and start is None:
        raise ModelError(f"{name or type(model).__name__}: its config gives no decoder_start_token_id; add one.")
    loaded = LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=name or type(model).__name__,
        family=family,
        vocab_size=head.weight.shape[0] if head is not None else text_config.vocab_size,
        eos_ids=() if eos is None else tuple(eos) if isinstance(eos, (list, tuple)) else (int(eos),),
        start_id=start if family.encoder_decoder else None,
        features=features_of(model),
    )
    return probed(loaded)


def load_model(
    model: str | Path,
    *,
    dtype: str = "auto",
    device: str = "auto",
    device_map: str | Mapping[str, Any] | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    packed: bool = False,
    folder: Path = Path(),
) -> LoadedModel:
    """Load a model and its tokenizer.

    Args:
        model: A folder, a hub name, or a built-in one such as `builtin:target`.
        dtype: `auto` (as stored; float32 on CPU, where half precision is slow), or a torch dtype's name.
        device: `auto` (a GPU when there is one), `cpu`, `cuda`, `cuda:1`.
        device_map: Passed to `from_pretrained` as it is; leave out for one device.
        revision: A hub revision.
        trust_remote_code: Whether code from the model's repository may run. Off unless said.
        packed: Whether to pack the weights for a CPU, see `pack`.
        folder: Where a relative folder is meant from.

    Raises:
        ModelError: The folder or its config is missing, the weights do not load or cannot be packed, or the family
            is refused.
    """
    place = _locate(str(model), folder)
    common: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if revision is not None:
        common["revision"] = revision
    where = _device(device)
    try:
        config = AutoConfig.from_pretrained(place, **common)
        auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        with without_progress_bar(), _without_talk_of_ties():
            loaded = auto.from_pretrained(
                place, dtype=_dtype(dtype, where), device_map=device_map, use_safetensors=True, **common
            )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise ModelError(_loading_failed(str(model), place, error)) from error
    if device_map is None:
        loaded = loaded.to(where)
    wrapped = wrap_model(loaded, _tokenizer(place, common), str(model))
    return pack(wrapped) if packed else wrapped


def load_vocabulary(model: str | Path, *, folder: Path = Path()) -> tuple[Any, int]:
    """Return a model's tokenizer (None where it has none) and V, the size of its vocabulary, without its weights.

    Args:
        model: A folder, a hub name, or a built-in one.
        folder: Where a relative folder is meant from.

    Raises:
        ModelError: The folder, its config or its tokenizer cannot be read.
    """
    place = _locate(str(model), folder)
    try:
        config = AutoConfig.from_pretrained(place)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(_loading_failed(str(model), place, error)) from error
    return _tokenizer(place, {}), int(config.get_text_config(decoder=True).vocab_size)


@contextmanager
def without_progress_bar() -> Iterator[None]:
    """Keep the library from drawing a bar for each model it loads or writes: commands have bars of their own."""
    shown = library_logging.is_progress_bar_enabled()
    library_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            library_logging.enable_progress_bar()


@contextmanager
def _without_talk_of_ties() -> Iterator[None]:
    """Keep the library from warning of a head that is not tied to the embedding, where the file has both.

    It makes every T5 config say that they are tied, 1.1 included, finds that they are not, does what is right, and
    advises a setting that the config already has.
    """

    def other(record: logging.LogRecord) -> bool:
        return "NOT tie" not in record.getMessage()

    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(other)
    try:
        yield
    finally:
        logger.removeFilter(other)


def _locate(model: str, folder: Path) -> str:
    """Return what `from_pretrained` should be given: an absolute folder, or a hub name as it is."""
    place = model_folder(model, folder)
    if place is not None and not (place / "config.json").is_file():
        raise ModelError(
            f"{model}: the folder has no config.json. A model folder is what save_pretrained() writes: "
            "config.json and model.safetensors, with the tokenizer beside them."
        )
    return model if place is None else str(place)


def _loading_failed(model: str, place: str, error: Exception) -> str:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if Path(place).is_dir():
        return (
            f"{model}: the folder cannot be loaded: {reason} A model folder is what save_pretrained() writes; if "
            "this one was cut short when it was copied, copy it again."
        )
    return (
        f"{model}: it is no folder here, and the hub did not give it: {reason} "
        "Check the name, the network (HF_HUB_OFFLINE?) and, for gated models, that you are logged in."
    )


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        where = torch.device(device)
    except RuntimeError as error:
        raise ModelError(f"device {device!r} is not known to torch: use auto, cpu, cuda or cuda:N.") from error
    if where.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {device!r} was asked for, but torch sees no GPU here: use cpu or auto.")
    return where


def _dtype(dtype: str, device: torch.device) -> torch.dtype | str:
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        allowed = ("float32", "float16", "bfloat16", "auto")
        raise ModelError(unknown_name("dtype", dtype, allowed))
    return found


_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")


def _tokenizer(place: str, common: Mapping[str, Any]) -> Any:
    folder = Path(place)
    if folder.is_dir() and not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        # A model without a tokenizer is legal (token ids in, token ids out), and a prompt in text will say so;
        # the library would make up an empty one for some families.
        return None
    try:
        return AutoTokenizer.from_pretrained(place, **common)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{place}: the tokenizer beside the model cannot be loaded: {error}") from error
