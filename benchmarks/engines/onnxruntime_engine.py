"""ONNX Runtime GenAI: plain, and with drafts that one pass verifies and `rewind_to` rolls back."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai
from lookup import copied


class Engine:
    """See `worker.py`. Greedy speculative decoding is a loop over the library's generators.

    Its own n-gram decoding (`set_speculative_options(ngram_size=...)`) needs more passes: it looks for matches of
    one length, and reads some tokens once more after a rejection.
    """

    def __init__(self, models: str, precision: str, methods: list[str], threads: int) -> None:
        folder = Path(models) / "onnxruntime" / precision
        self.versions = {"onnxruntime_genai": version("onnxruntime-genai")}
        self.methods = methods
        self._models = {
            name: load(folder / name, threads)
            for name in ("target", "drafter")
            if name == "target" or "draft" in methods
        }

    def generate(
        self, method: str, settings: dict[str, Any], prompts: list[list[int]], tokens: int, temperature: float
    ) -> tuple[list[list[int]], int | None]:
        """Return the new tokens of each prompt, and passes of the target."""
        if method == "plain":
            return self._plain(prompts, tokens, temperature), tokens
        if len(prompts) > 1 or temperature:
            raise ValueError("drafts are for one prompt at temperature 0")
        found, passes = self._speculative(method, settings, prompts[0], tokens)
        return [found], passes

    def _plain(self, prompts: list[list[int]], tokens: int, temperature: float) -> list[list[int]]:
        longest = max(map(len, prompts))
        if len({len(prompt) for prompt in prompts}) > 1:
            raise ValueError("prompts of a batch must be equally long")
        options = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {}
        generator = self._generator("target", longest + tokens, batch_size=len(prompts), **options)
        generator.append_tokens(np.array(prompts, dtype=np.int32))
        for _ in range(tokens):
            generator.generate_next_token()
        return [generator.get_sequence(row)[longest : longest + tokens] for row in range(len(prompts))]

    def _speculative(
        self, method: str, settings: dict[str, Any], prompt: list[int], tokens: int
    ) -> tuple[list[int], int]:
        gamma, end = settings["gamma"], len(prompt) + tokens
        target = self._generator("target", end + gamma + 1)
        drafter = self._generator("drafter", end + gamma + 1) if method == "draft" else None
        text, read, passes = list(prompt), 0, 0
        while len(text) < end:
            room = min(gamma, end - len(text) - 1)
            draft = self._draft(drafter, text, room) if drafter else copied(text, room, settings["ngram"])
            target.append_tokens(np.array([text[read:] + draft], dtype=np.int32))
            passes += 1
            # The last `len(draft) + 1` rows; the pass over a prompt may return its last row only.
            rows = target.get_output("logits")[0]
            best = rows[-len(draft) - 1 :].argmax(-1).tolist()
            right = 0
            while right < len(draft) and draft[right] == best[right]:
                right += 1
            text += best[: right + 1]
            read = len(text) - 1
            if right < len(draft):
                target.rewind_to(read)
            if drafter is not None and drafter.token_count() > read:
                drafter.rewind_to(read)
        return text[len(prompt) :], passes

    def _draft(self, drafter: Any, text: list[int], length: int) -> list[int]:
        draft: list[int] = []
        for _ in range(length):
            new = (text + draft)[drafter.token_count() :]
            drafter.append_tokens(np.array([new], dtype=np.int32))
            draft.append(int(drafter.get_output("logits")[0, -1].argmax()))
        return draft

    def _generator(self, name: str, length: int, **options: Any) -> Any:
        params = onnxruntime_genai.GeneratorParams(self._models[name])
        params.set_search_options(max_length=length, min_length=length, **options)
        return onnxruntime_genai.Generator(self._models[name], params)


def load(folder: Path, threads: int) -> Any:
    """Load a model."""
    config = onnxruntime_genai.Config(str(folder))
    session = {"intra_op_num_threads": threads}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
    return onnxruntime_genai.Model(config)
