"""The n-grams that ship with the built-in T5 pair."""

from pathlib import Path

import pytest
import torch

from specdec_core.interface import TargetInfo
from specdec_drafters.ngram.drafter import NgramDrafter
from specdec_drafters.settings import NgramConfig, find_arpa

NAMES = [f"builtin:{task}-{kind}" for task in ("translation", "summarization") for kind in ("unigram", "bigram")]


@pytest.mark.parametrize("name", NAMES)
def test_each_is_read_and_has_the_order_of_its_name(name):
    target = TargetInfo(vocab_size=8192, eos_ids=(1,), device=torch.device("cpu"), encoder_decoder=True)
    drafter = NgramDrafter(NgramConfig(arpa=name), target)
    assert drafter.tables.order == {"unigram": 1, "bigram": 2}[name.rpartition("-")[2]]


def test_all_of_what_ships_can_be_named():
    shipped = sorted(path.stem for path in find_arpa(NAMES[0], Path()).parent.glob("*.arpa"))
    assert [f"builtin:{stem}" for stem in shipped] == sorted(NAMES)
