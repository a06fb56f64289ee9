"""transformers: `generate` with an eager or a static, compiled cache, assisted generation, and prompt lookup."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers


class Engine:
    """See `worker.py`. 8 bits are torch's dynamic quantization, which quantizes activations too.

    `float32-compiled` decodes plainly with a static cache and a compiled pass: assisted generation has neither.
    """

    def __init__(self, models: str, precision: str, methods: list[str], threads: int) -> None:
        torch.set_num_threads(threads)
        transformers.logging.set_verbosity_error()
        self.versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        self.methods = methods
        kind, _, compiled = precision.partition("-")
        self._target = load(Path(models) / "target", kind)
        self._drafter = load(Path(models) / "drafter", kind) if "draft" in methods else None
        self._compiling = None
        self._passes = 0
        if compiled:
            self._compiling = transformers.CompileConfig(mode="default", fullgraph=False)
            # `generate` compiles on accelerators only, unless told so.
            self._compiling._compile_all_devices = True
        else:
            self._target.register_forward_pre_hook(self._count)

    def _count(self, *_: Any) -> None:
        self._passes += 1

    def generate(
        self, method: str, settings: dict[str, Any], prompts: list[list[int]], tokens: int, temperature: float
    ) -> tuple[list[list[int]], int | None]:
        """Return the new tokens of each prompt, and passes of the target."""
        if self._compiling is not None and method != "plain":
            raise ValueError("assisted generation supports no static cache")
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        options: dict[str, Any] = {"max_new_tokens": tokens, "pad_token_id": 0, "do_sample": temperature > 0}
        if temperature:
            options |= {"temperature": temperature, "top_k": 0, "top_p": 1.0}
        if self._compiling is not None:
            options |= {"cache_implementation": "static", "compile_config": self._compiling}
        if method == "lookup":
            options |= {
                "prompt_lookup_num_tokens": settings["gamma"],
                "max_matching_ngram_size": settings["ngram"],
            }
        elif method == "draft":
            assert self._drafter is not None
            config = self._drafter.generation_config
            config.num_assistant_tokens, config.assistant_confidence_threshold = settings["gamma"], 0.0
            config.num_assistant_tokens_schedule = "constant"
            options["assistant_model"] = self._drafter
        self._passes = 0
        with torch.inference_mode():
            output = self._target.generate(ids, attention_mask=mask, **options)
        return output[:, longest:].tolist(), self._passes if self._compiling is None else tokens


def load(folder: Path, precision: str) -> Any:
    """Load a model, which then never ends a text."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    if precision not in ("float32", "int8"):
        raise ValueError(f"unknown precision {precision!r}; allowed: float32, int8")
    if precision == "int8":
        torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, torch.qint8, inplace=True)
    return model
