"""Make a tokenizer that is not the built-in target's, for `examples/translated.yaml`.

    python examples/other_tokenizer.py results/other-tokenizer

It is a byte-level BPE of 3,000 tokens that splits text as GPT-2 does, counted in the Python standard library in
half a minute. The folder also gets a small model with random weights, since `specdec train transformer` asks for
a model that says how many tokens there are.
"""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SIZE = 3000
END_OF_TEXT = "<|endoftext|>"


def main() -> None:
    """Write the folder that is named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where it goes")
    folder: Path = parser.parse_args().folder
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False
    )
    library = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    tokenizer.train_from_iterator((path.read_text(encoding="utf-8", errors="ignore") for path in library), trainer)
    ends = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ends).save_pretrained(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = LlamaConfig(vocab_size=SIZE, max_position_embeddings=2048, bos_token_id=0, eos_token_id=0, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    print(f"wrote {folder}: {len(tokenizer.get_vocab()):,} tokens")


if __name__ == "__main__":
    main()
