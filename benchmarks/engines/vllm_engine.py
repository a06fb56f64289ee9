"""vLLM on a CPU: plain, a draft model and its n-gram proposer, each in an engine of its own, in float32."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}

import llvmlite.binding.ffi
import torch
import vllm

llvmlite.binding.ffi._lib_fn_wrapper.get = lambda *_: None  # vLLM looks for kernels in what it takes for a dict


class Engine:
    """See `worker.py`. Each gamma needs an engine; none is closed, because that takes what they share."""

    def __init__(self, models: str, precision: str, methods: list[str], threads: int) -> None:
        if precision != "float32":
            raise ValueError("vLLM's CPU build has no 8-bit format that the checkpoint converts to")
        torch.set_num_threads(threads)
        self.versions = {"vllm": vllm.__version__}
        self.methods = methods
        self._models = Path(models)
        self._engines: dict[str, Any] = {}

    def generate(
        self, method: str, settings: dict[str, Any], prompts: list[list[int]], tokens: int, temperature: float
    ) -> tuple[list[list[int]], int | None]:
        """Return the new tokens of each prompt, and None: passes of the target are not counted."""
        if temperature and method != "plain":
            raise ValueError("vLLM's CPU build verifies sampled drafts with wrong temperatures (its issue 55005)")
        name = json.dumps([method, settings])
        if name not in self._engines:
            self._engines[name] = self._engine(method, settings)
        sampling = vllm.SamplingParams(
            temperature=temperature, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self._engines[name].generate(given, sampling, use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs], None

    def _engine(self, method: str, settings: dict[str, Any]) -> Any:
        drafts: dict[str, dict[str, Any]] = {
            "plain": {},
            "lookup": {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": settings.get("ngram")},
            "draft": {"method": "draft_model", "model": str(self._models / "drafter")},
        }
        config = drafts[method]
        if config:
            config = {"speculative_config": {"num_speculative_tokens": settings["gamma"], **config}}
        return vllm.LLM(
            str(self._models / "target"),
            dtype="float32",
            max_model_len=1024,
            block_size=32,
            max_num_seqs=8,
            enable_prefix_caching=False,
            **config,
        )
