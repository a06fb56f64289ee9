"""A tokenizer small enough to read, and tiny targets of trainings."""

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from tests.drafters.training.support import saved_targets


@pytest.fixture(scope="session")
def word_tokenizer() -> PreTrainedTokenizerFast:
    """Words a to h are the ids 0 to 7, anything else is 8."""
    inner = Tokenizer(WordLevel({word: id_ for id_, word in enumerate([*"abcdefgh", "?"])}, unk_token="?"))
    inner.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="?")


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    """Return a tiny target by its family, saved and loaded once."""
    return saved_targets(tmp_path_factory.mktemp("targets"))
