"""OpenVINO GenAI: plain, a draft model and prompt lookup, each in a pipeline of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai


class Engine:
    """See `worker.py`.

    Precisions: `float32` and `int8` compute and cache in float32, without quantization of activations;
    `int8-default` leaves both to OpenVINO.
    """

    def __init__(self, models: str, precision: str, methods: list[str], threads: int) -> None:
        kind, _, defaults = precision.partition("-")
        folder = Path(models) / "openvino" / kind
        options: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
        if not defaults:
            options |= {"KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size, scheduler.enable_prefix_caching = 1, False
        extra: dict[str, Any] = {
            "draft": {"draft_model": openvino_genai.draft_model(folder / "drafter", "CPU", **options)},
            "lookup": {"prompt_lookup": True},
        }
        self.versions = {"openvino_genai": openvino_genai.__version__}
        self._pipelines = {}
        for method in methods:
            added = {**extra[method], "scheduler_config": scheduler} if method in extra else {}
            if method == "batched":
                added = {"scheduler_config": scheduler}
            self._pipelines[method] = openvino_genai.LLMPipeline(folder / "target", "CPU", **added, **options)
        self.methods = list(self._pipelines)

    def generate(
        self, method: str, settings: dict[str, Any], prompts: list[list[int]], tokens: int, temperature: float
    ) -> tuple[list[list[int]], int | None]:
        """Return the new tokens of each prompt, and None: passes of the target are not counted."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos = tokens, True
        if temperature:
            config.do_sample, config.temperature, config.top_k, config.top_p = True, temperature, 0, 1.0
        if method in ("draft", "lookup"):
            config.num_assistant_tokens = settings["gamma"]
        if method == "lookup":
            config.max_ngram_size = settings["ngram"]
        longest = max(map(len, prompts))
        ids = np.zeros((len(prompts), longest), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = prompt
            mask[row, longest - len(prompt) :] = 1
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(mask))
        return self._pipelines[method].generate(inputs, config).tokens, None
