"""Write a saved Llama as a GGUF file of float32 or, if the file's folder is called int8, Q8_0.

python benchmarks/engines/gguf_file.py FOLDER FILE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file


def main() -> None:
    """Write the file."""
    folder, path = map(Path, sys.argv[1:])
    path.parent.mkdir(parents=True, exist_ok=True)
    write(folder, "Q8_0" if path.parent.name == "int8" else "F32", path)


def write(folder: Path, kind: str, path: Path) -> None:
    """Write a Llama with tied embeddings as a GGUF file without a vocabulary.

    Args:
        folder: A checkpoint of transformers in float32.
        kind: Format of the matrices, such as `Q8_0`; vectors stay in float32.
        path: The file.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, weight in load_file(folder / "model.safetensors").items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = interleave_halves(weight, config["head_dim"])
        form: Any = gguf.GGMLQuantizationType[kind if weight.ndim == 2 else "F32"]
        array = np.ascontiguousarray(weight)
        if form is not gguf.GGMLQuantizationType.F32:
            array = gguf.quants.quantize(array, form)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), array, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleave_halves(weight: np.ndarray, size: int) -> np.ndarray:
    """Reorder the outputs of a query or key projection for llama.cpp.

    Rotary embeddings rotate pairs of dimensions: transformers pairs dimension i of a head with i + size / 2,
    llama.cpp pairs neighbors.
    """
    outputs, inputs = weight.shape
    return weight.reshape(-1, 2, size // 2, inputs).swapaxes(1, 2).reshape(outputs, inputs)


if __name__ == "__main__":
    main()
