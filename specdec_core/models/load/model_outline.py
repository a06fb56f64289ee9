"""Facts of a model that need no weights: its vocabulary, ids of special tokens and number of positions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import AutoConfig, GenerationConfig

from specdec_core.interface.errors import ModelError, shortened
from specdec_core.models.load.locate import locate, read_tokenizer, reading_model
from specdec_core.models.loaded import length_limit


@dataclass(frozen=True)
class ModelOutline:
    """The facts of a model that need no weights.

    Attributes:
        tokenizer: Its tokenizer, or None.
        vocab_size: V.
        eos_ids: End-of-sequence token ids.
        start_id: The decoder's first token for encoder-decoder models, else None.
        max_positions: The most tokens of a sequence, or None if unlimited.
        config: Its configuration, of transformers.
    """

    tokenizer: Any
    vocab_size: int
    eos_ids: tuple[int, ...]
    start_id: int | None
    max_positions: int | None
    config: Any


def load_outline(
    model: str | Path, *, folder: Path = Path(), revision: str | None = None, subfolder: str | None = None
) -> ModelOutline:
    """Return the facts in a model's config and tokenizer, without loading its weights.

    Args:
        model: A folder, a hub name, or a built-in model.
        folder: Base for relative paths.
        revision: Branch, tag or commit of a hub model.
        subfolder: Folder of the model within `model`.

    Raises:
        ModelError: The folder, its config or its tokenizer cannot be read.
    """
    location, options = locate(str(model), folder, subfolder, revision)
    with reading_model(str(model), location):
        config = AutoConfig.from_pretrained(location, **options)
        text_config = config.get_text_config(decoder=True)
        try:
            generation = GenerationConfig.from_pretrained(location, **options)
        except OSError:  # not every model has one
            generation = None
        start = read_start_id(generation, config)
        outline = ModelOutline(
            tokenizer=None,
            vocab_size=int(text_config.vocab_size),
            eos_ids=read_eos_ids(str(model), generation, text_config),
            start_id=start if config.is_encoder_decoder else None,
            max_positions=length_limit(text_config),
            config=config,
        )
    return replace(outline, tokenizer=read_tokenizer(location, options, subfolder))


def load_vocabulary(model: str | Path, *, folder: Path = Path()) -> tuple[Any, int]:
    """Return a model's tokenizer (or None) and its vocabulary size V, without loading its weights.

    Args:
        model: A folder, a hub name, or a built-in model.
        folder: Base for relative paths.

    Raises:
        ModelError: The folder, its config or its tokenizer cannot be read.
    """
    outline = load_outline(model, folder=folder)
    return outline.tokenizer, outline.vocab_size


def read_eos_ids(model: str, *configs: Any) -> tuple[int, ...]:
    """Return the ids of `eos_token_id`, which is an id, a list of ids, or None.

    Args:
        model: Its name for messages.
        configs: Its generation config, which may be None, and its config; the first that has a value counts.

    Raises:
        ModelError: It is something else.
    """
    eos = _first_setting("eos_token_id", *configs)
    if eos is None:
        return ()
    ids = tuple(eos) if isinstance(eos, (list, tuple)) else (eos,)
    wrong = [value for value in ids if not isinstance(value, int) or isinstance(value, bool)]
    if wrong:
        raise ModelError(
            f"{model}: eos_token_id of its config or generation_config must be a token id or a list of them; "
            f"given {shortened(repr(eos))}. Correct the file."
        )
    return ids


def read_start_id(generation: Any, config: Any) -> int | None:
    """Return the decoder's first token, which is the bos token where no other is set, as in `generate`."""
    start: int | None = _first_setting("decoder_start_token_id", generation, config)
    return (
        _first_setting("bos_token_id", generation, config.get_text_config(decoder=True))
        if start is None
        else start
    )


def _first_setting(name: str, *configs: Any) -> Any:
    """Return a setting of the first config that has it, or None."""
    return next((value for config in configs if (value := getattr(config, name, None)) is not None), None)
