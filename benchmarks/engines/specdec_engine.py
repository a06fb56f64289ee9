"""specdec: plain, a draft model, copying from the prompt, and a chain of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from specdec_core import GenerationSettings, SamplingSettings, load_model
from specdec_core._version import installed_version
from specdec_core.decoding.decoder import Decoder


class Engine:
    """See `worker.py`. Precisions: `float32` and `int8`; with `-compiled` behind it, the models are compiled."""

    def __init__(self, models: str, precision: str, methods: list[str], threads: int) -> None:
        torch.set_num_threads(threads)
        self.versions = {"specdec": installed_version(), "torch": torch.__version__}
        self.methods = methods
        self._models = Path(models)
        kind, _, compiled = precision.partition("-")
        self._options: dict[str, Any] = {"packed": "int8"} if kind == "int8" else {}
        self._options |= {"compile": True} if compiled else {}
        self._target = load_model(self._models / "target", **self._options)
        self._decoders: dict[Any, Decoder] = {}

    def generate(
        self, method: str, settings: dict[str, Any], prompts: list[list[int]], tokens: int, temperature: float
    ) -> tuple[list[list[int]], int | None]:
        """Return the new tokens of each prompt, and passes of the target."""
        key = (method, *settings.values(), temperature)
        if key not in self._decoders:
            self._decoders[key] = Decoder(
                self._target,
                self._drafter(method, settings),
                gamma=settings.get("gamma") if method != "plain" else None,
                sampling=SamplingSettings(temperature=temperature),
                strict=True,
            )
        result = self._decoders[key].generate(prompts, GenerationSettings(max_new_tokens=tokens, ignore_eos=True))
        return [list(one.tokens) for one in result], result.metrics.target_calls

    def _drafter(self, method: str, settings: dict[str, Any]) -> Any:
        """Return a drafter as in a study file."""
        model = {"name": "transformer", "model": str(self._models / "drafter"), **self._options}
        copying = {"name": "prompt-copy"}
        if "ngram" in settings:  # the longest match, as in other engines; before a model, the shortest
            copying["max_match" if method == "lookup" else "min_match"] = settings["ngram"]
        return {
            "plain": None,
            "draft": model,
            "lookup": copying,
            "chain": {"name": "chain", "drafters": [copying, model]},
        }[method]
