"""A target forward pass on a CPU, in specdec and in llama.cpp: one token, and drafts of several lengths.

Both run the same weights, a Llama with random ones, after the same context, interleaved. Each weight format has a
floor: the time to read its bytes from memory once. llama.cpp is used through llama-cpp-python, which compiles it:

    pip install llama-cpp-python gguf
    python benchmarks/vs_llama_cpp.py
    python benchmarks/vs_llama_cpp.py --layers 4 --repeats 3
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import gguf
import llama_cpp
import torch
from _common import forward_pass, interleaved, progress, report, spread
from transformers import LlamaConfig, LlamaForCausalLM

from specdec_core.models import LoadedModel, compile_model, pack, quantize, wrap_model

FORMATS = {"float32": "F32", "bfloat16": "BF16", "q8_0": "Q8_0"}
"""llama.cpp's names of the weight formats."""
FLOOR = "reading as many bytes"
BYTES = {"float32": 4.0, "bfloat16": 2.0, "q8_0": 34 / 32}
"""Bytes of a weight: q8_0 keeps a 16-bit scale for each block of 32."""


def main() -> None:
    """Run the benchmark and print the result."""
    options = parse()
    torch.set_num_threads(options.threads)
    model = llama(options)
    parameters = sum(weight.numel() for weight in model.parameters())
    formats = {}
    for name in options.formats:
        progress(f"{name} ...")
        formats[name] = measure(model, name, options)
    report(
        {
            "benchmark": "vs_llama_cpp",
            "options": vars(options),
            "parameters": parameters,
            "llama_cpp": llama_cpp.__version__,
            "formats": formats,
        }
    )


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12, help="layers of the model")
    parser.add_argument(
        "--width", type=int, default=768, help="hidden size; feed-forward size: four times as many"
    )
    parser.add_argument("--vocab", type=int, default=4096, help="vocabulary size")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS), help="weight formats")
    parser.add_argument("--context", type=int, default=64, help="number of cached tokens")
    parser.add_argument("--drafted", type=int, nargs="+", default=[0, 4], help="draft lengths")
    parser.add_argument("--repeats", type=int, default=15, help="measured rounds")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def llama(options: argparse.Namespace) -> LlamaForCausalLM:
    """Return a Llama with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=options.vocab,
        hidden_size=options.width,
        intermediate_size=4 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=options.width // 64,
        num_key_value_heads=options.width // 64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def measure(model: LlamaForCausalLM, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the times of all passes over weights of one format, and how far their logits are apart."""
    tokens = [token % 50 + 5 for token in range(options.context)]
    weights = torch.ones(int(sum(weight.numel() for weight in model.parameters()) * BYTES[name] / 4))
    functions: dict[str, Callable[[], Any]] = {FLOOR: weights.sum}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_gguf(model, FORMATS[name], path)
        other = LlamaCpp(path, tokens, options)
    variants = specdec_models(model, name)
    error = difference(next(iter(variants.values())).model, other, tokens, max(options.drafted))
    for drafted in options.drafted:
        for variant, loaded in variants.items():
            functions[f"specdec {variant}, {drafted} drafted"] = forward_pass(loaded, options.context, drafted)
        functions[f"llama.cpp, {drafted} drafted"] = partial(other.verify, drafted)
    for function in functions.values():  # the first passes of compiled code are checked
        for _ in range(3):
            function()
    seconds, _ = interleaved(functions, options.repeats)
    model.to(torch.float32)
    floor = median(seconds[FLOOR])
    return {
        "relative_difference_of_logits": error,
        "milliseconds": {name: spread([1e3 * s for s in runs], 2) for name, runs in seconds.items()},
        "over_floor": {name: round(median(runs) / floor, 2) for name, runs in seconds.items()},
    }


def specdec_models(model: LlamaForCausalLM, name: str) -> dict[str, LoadedModel]:
    """Return the model in specdec, with weights of one format, in each way that is timed."""
    if name == "q8_0":
        rounded = quantize(wrap_model(model, name="random"), 8)
        return {"int8": rounded, "int8, compiled": compile_model(rounded)}
    plain = wrap_model(model.to(getattr(torch, name)), name="random")
    packed = pack(plain)
    return {"plain": plain, "packed": packed, "packed, compiled": compile_model(packed)}


class LlamaCpp:
    """A model in llama.cpp, which has read a context.

    Args:
        path: A GGUF file.
        tokens: The context.
        options: The command line.
    """

    def __init__(self, path: Path, tokens: Sequence[int], options: argparse.Namespace) -> None:
        llama_cpp.llama_log_set(_ignore, ctypes.c_void_p())
        settings = llama_cpp.llama_model_default_params()
        settings.use_mmap = False
        model = llama_cpp.llama_model_load_from_file(str(path).encode(), settings)
        if model is None:
            raise SystemExit(f"llama.cpp cannot load {path.name}.")
        context = llama_cpp.llama_context_default_params()
        context.n_ctx, context.n_batch = 512, 512
        context.n_threads = context.n_threads_batch = options.threads
        self._context = llama_cpp.llama_init_from_model(model, context)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocab, self._read = options.vocab, len(tokens) - 1
        self._batch = llama_cpp.llama_batch_init(512, 0, 1)
        self._last = tokens[-1]
        self._decode(tokens[:-1], 0)

    def verify(self, drafted: int) -> None:
        """Run the last token and a draft through the model, and roll both back."""
        self._decode([self._last, *range(7, 7 + drafted)], self._read)
        llama_cpp.llama_get_logits_ith(self._context, 0)  # waits until they are there
        llama_cpp.llama_memory_seq_rm(self._memory, 0, self._read, -1)

    def logits(self, drafted: int) -> torch.Tensor:
        """Return the logits after the last token and each drafted one, `[drafted + 1, V]`."""
        self._decode([self._last, *range(7, 7 + drafted)], self._read)
        rows = [llama_cpp.llama_get_logits_ith(self._context, row)[: self._vocab] for row in range(drafted + 1)]
        llama_cpp.llama_memory_seq_rm(self._memory, 0, self._read, -1)
        return torch.tensor(rows)

    def _decode(self, tokens: Sequence[int], start: int) -> None:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for number, token in enumerate(tokens):
            batch.token[number], batch.pos[number] = token, start + number
            batch.n_seq_id[number], batch.seq_id[number][0], batch.logits[number] = 1, 0, 1
        if llama_cpp.llama_decode(self._context, batch):
            raise SystemExit("llama.cpp cannot decode.")


@llama_cpp.llama_log_callback
def _ignore(level: int, text: bytes, data: Any) -> None:
    """Print nothing."""


@torch.inference_mode()
def difference(model: LlamaForCausalLM, other: LlamaCpp, tokens: Sequence[int], drafted: int) -> float:
    """Return the largest difference of the logits of both, relative to the largest logit."""
    ids = torch.tensor([[*tokens, *range(7, 7 + drafted)]])
    expected = model(ids).logits[0, len(tokens) - 1 :].float()
    return round(((other.logits(drafted) - expected).abs().max() / expected.abs().max()).item(), 5)


def write_gguf(model: LlamaForCausalLM, kind: str, path: Path) -> None:
    """Write a Llama as a GGUF file without a vocabulary.

    Args:
        model: The model, in float32.
        kind: Format of the matrices, such as `Q8_0`; vectors stay in float32.
        path: The file.
    """
    config: Any = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.float().state_dict().items():
        if name == "lm_head.weight":  # tied to the embeddings
            continue
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = interleave_halves(weight, config.head_dim)
        array = weight.numpy()
        form = gguf.GGMLQuantizationType[kind if weight.ndim == 2 else "F32"]
        if form is not gguf.GGMLQuantizationType.F32:
            array = gguf.quants.quantize(array, form)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), array, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleave_halves(weight: torch.Tensor, size: int) -> torch.Tensor:
    """Reorder the outputs of a query or key projection for llama.cpp.

    Rotary embeddings rotate pairs of dimensions: transformers pairs dimension i of a head with i + size / 2,
    llama.cpp pairs neighbors.
    """
    outputs, inputs = weight.shape
    return weight.view(-1, 2, size // 2, inputs).transpose(1, 2).reshape(outputs, inputs).contiguous()


if __name__ == "__main__":
    main()
