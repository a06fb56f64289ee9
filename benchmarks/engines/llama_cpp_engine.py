"""llama.cpp through its C interface: plain, and its speculative loop with a draft model or copied tokens."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from lookup import copied

MOST = 2048
"""Tokens of a context."""


class Engine:
    """See `worker.py`. The loop is that of llama.cpp's `speculative-simple`, without a threshold for drafts."""

    def __init__(self, models: str, precision: str, methods: list[str], threads: int) -> None:
        llama_cpp.llama_log_set(_ignore, ctypes.c_void_p())
        folder = Path(models) / "llama_cpp" / precision
        self.versions = {"llama_cpp_python": llama_cpp.__version__}
        self.methods = methods
        self._target = Model(folder / "target.gguf", threads)
        self._drafter = Model(folder / "drafter.gguf", threads) if "draft" in methods else None

    def generate(
        self, method: str, settings: dict[str, Any], prompts: list[list[int]], tokens: int, temperature: float
    ) -> tuple[list[list[int]], int | None]:
        """Return the new tokens of each prompt, and passes of the target."""
        if len(prompts) > 1 or temperature:
            raise ValueError("this worker decodes one prompt at temperature 0")
        (prompt,) = prompts
        text, passes, end = list(prompt), 0, len(prompt) + tokens
        self._target.keep(0)
        if self._drafter is not None:
            self._drafter.keep(0)
        while len(text) < end:
            room = min(settings.get("gamma", 0), end - len(text) - 1)
            draft: list[int] = []
            if method == "lookup":
                draft = copied(text, room, settings["ngram"])
            elif method == "draft":
                assert self._drafter is not None
                for _ in range(room):
                    draft += self._drafter.best((text + draft)[self._drafter.read :], 1)
            best = self._target.best(text[self._target.read :] + draft, len(draft) + 1)
            passes += 1
            right = 0
            while right < len(draft) and draft[right] == best[right]:
                right += 1
            text += best[: right + 1]
            self._target.keep(len(text) - 1)
            if self._drafter is not None:
                self._drafter.keep(len(text) - 1)
        return [text[len(prompt) :]], passes


class Model:
    """A model and its context.

    Attributes:
        read: Tokens in the cache.
    """

    def __init__(self, path: Path, threads: int) -> None:
        settings = llama_cpp.llama_model_default_params()
        settings.use_mmap = False
        model = llama_cpp.llama_model_load_from_file(str(path).encode(), settings)
        if model is None:
            raise ValueError(f"llama.cpp cannot load {path}")
        context = llama_cpp.llama_context_default_params()
        context.n_ctx, context.n_batch = MOST, MOST
        context.n_threads = context.n_threads_batch = threads
        context.type_k = context.type_v = llama_cpp.GGML_TYPE_F32
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._context = llama_cpp.llama_init_from_model(model, context)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(MOST, 0, 1)
        self.read = 0

    def best(self, tokens: Sequence[int], last: int) -> list[int]:
        """Read tokens, and return the most probable next token after each of the `last` ones."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for number, token in enumerate(tokens):
            batch.token[number], batch.pos[number] = token, self.read + number
            batch.n_seq_id[number], batch.seq_id[number][0] = 1, 0
            batch.logits[number] = int(number >= len(tokens) - last)
        if llama_cpp.llama_decode(self._context, batch):
            raise ValueError("llama.cpp cannot decode")
        self.read += len(tokens)
        logits = llama_cpp.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, (last, self._vocab)).argmax(-1).tolist()

    def keep(self, count: int) -> None:
        """Forget all but the first tokens."""
        if count < self.read:
            llama_cpp.llama_memory_seq_rm(self._memory, 0, count, -1)
            self.read = count


@llama_cpp.llama_log_callback
def _ignore(level: int, text: bytes, data: Any) -> None:
    """Print nothing."""
