"""A model folder for the command line: random weights and a tokenizer of nine words."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a decoder-only model whose words are a to h; any other text is the ninth."""
    return save_model(tmp_path_factory.mktemp("model"))


def save_model(folder: Path, family: str = "gpt2") -> Path:
    """Write such a model to a folder, and return the folder.

    Args:
        folder: An empty folder.
        family: One of those of `tiny_model`.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    from tests.tiny import tiny_model

    inner = Tokenizer(WordLevel({word: id_ for id_, word in enumerate([*"abcdefgh", "?"])}, unk_token="?"))
    inner.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="?").save_pretrained(folder)
    tiny_model(family, vocab=9).save_pretrained(folder)
    return folder
