"""A drafter in transformers: the function that the `custom_generate/generate.py` of an exported folder calls."""

import copy
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import GenerationMixin

from specdec_core.decoding.arguments import make_drafter
from specdec_core.decoding.custom_generate.function import generate_with
from specdec_core.models import LoadedModel, wrap_model

_LOG = logging.getLogger("uvicorn.error")
"""The general logger of uvicorn, in spite of its name: `transformers serve` shows it."""


class ServedGenerate:
    """The function `generate` of a folder that `specdec export --to transformers` wrote.

    transformers replaces `model.generate` with it when it loads the folder with `trust_remote_code`, and
    `transformers serve` calls it for every request. It decodes with the drafter, with the same distribution as
    plain `generate`, and logs the figures of each call: the answers of `transformers serve` cannot carry them. A
    line ends with the JSON that a response of vLLM has as `metrics`.

    Args:
        drafter: The drafter as in a study: its name, or a mapping with `name` and settings.
        gamma: The number of tokens drafted in a step, or a gamma controller as in a study.
        folder: Base for relative paths in the drafter's settings.
    """

    def __init__(
        self, drafter: str | Mapping[str, Any], gamma: int | str | Mapping[str, Any], folder: str = ""
    ) -> None:
        self._drafter, self._gamma, self._folder = drafter, gamma, Path(folder)
        self._loaded: LoadedModel | None = None  # the model that was called last
        self._decode: Any = None

    def __call__(
        self, model: Any, *args: Any, generation_config: Any = None, tokenizer: Any = None, **kwargs: Any
    ) -> Any:
        """Generate; the arguments and the result are those of `model.generate`.

        Args:
            model: The model.
            args: Passed on.
            generation_config: Its `max_new_tokens` becomes smaller if the model has no room for as many.
            tokenizer: The model's tokenizer, for drafters that read text and for `stop_strings`.
            kwargs: Passed on.

        Raises:
            ConfigError: Something was asked for that `generate_with` does not do.
        """
        loaded = self._ready(model, getattr(tokenizer, "tokenizer", tokenizer))
        given = model.generation_config if generation_config is None else generation_config
        dictionary = kwargs.pop("return_dict_in_generate", given.return_dict_in_generate)
        if generation_config is None:
            kwargs["return_dict_in_generate"] = True
        else:
            inputs = (*args[:1], kwargs.get("inputs"), kwargs.get("input_ids"))
            ids = next((one for one in inputs if one is not None), None)
            if ids is not None and not loaded.encoder_decoder:
                _fit(loaded, generation_config, ids.shape[-1])
            generation_config = copy.copy(generation_config)
            generation_config.return_dict_in_generate = True
            if generation_config.stop_strings is not None:
                # As an argument: those of the config take a tokenizer, which transformers does not pass on.
                kwargs["stop_strings"], generation_config.stop_strings = generation_config.stop_strings, None
        output = GenerationMixin.generate(
            model, *args, generation_config=generation_config, custom_generate=self._decode, **kwargs
        )
        for one in output.request_metrics:
            _LOG.info("%s %s", output.metrics, json.dumps({"speculative_decoding": one.to_plain(detailed=True)}))
        return output if dictionary else output.sequences

    def _ready(self, model: Any, tokenizer: Any) -> LoadedModel:
        """Load the drafter for a model, if it is not the one of the last call, or came without its tokenizer."""
        known = self._loaded
        if known is None or known.model is not model or (known.tokenizer is None and tokenizer is not None):
            known = wrap_model(model, tokenizer)
            drafter = make_drafter(known, self._drafter, folder=self._folder)
            self._decode = generate_with(drafter, gamma=self._gamma, tokenizer=tokenizer)
            self._loaded = known
        return known


def _fit(loaded: LoadedModel, generation_config: Any, prompt: int) -> None:
    """Have generation end where the model's positions end: `transformers serve` asks for 1024 tokens unasked.

    The config itself is changed, since the server compares its `max_new_tokens` with what came back to tell a
    client that a text ended there.
    """
    longest, wanted = loaded.max_length(prompt), generation_config.max_new_tokens
    if longest is not None and wanted is not None and 0 < longest - prompt < wanted:
        generation_config.max_new_tokens = longest - prompt
        _LOG.info(
            "max_new_tokens is %d, not %d: the model takes %d tokens in all", longest - prompt, wanted, longest
        )
