"""Random heads give the target's distribution, for both kinds of target."""

from __future__ import annotations

import pytest

from specdec_core.decoding import Decoder
from specdec_core.interface.settings import GenerationSettings
from tests.drafters.support import heads_for
from tests.lossless import SETTINGS, doubled_p_value, enumerate_continuations, small_target
from tests.pairwise import pairwise
from tests.toys import Gamma

# The first token comes without a draft, as the target has read nothing yet, and the last one is never drafted: so
# many are needed for two heads to be judged.
LENGTH = 4


@pytest.fixture(scope="module")
def pairs(device, tmp_path_factory):
    """Return a small target and random heads for it."""
    made = {}

    def pairs(family, reads_token=True):
        if (family, reads_token) not in made:
            target = small_target(device, family)
            drafter = heads_for(target, tmp_path_factory.mktemp("heads"), reads_token=reads_token)
            made[family, reads_token] = target, drafter
        return made[family, reads_token]

    return pairs


def check_lossless(pairs, family, reads_token, setting, count):
    target, drafter = pairs(family, reads_token)
    decoder = Decoder(target, drafter, gamma=Gamma(2, 3), sampling=SETTINGS[setting], strict=True)
    expected = enumerate_continuations(target, SETTINGS[setting], length=LENGTH)
    assert doubled_p_value(decoder, expected, count, length=LENGTH) > 1e-4


@pytest.mark.parametrize(
    ("family", "reads_token", "setting"),
    [("gpt2", True, "temperature-0.7-top-p-0.6"), ("gpt2", False, "temperature-1"), ("t5", True, "top-k-3")],
)
def test_heads_are_lossless(pairs, family, reads_token, setting):
    check_lossless(pairs, family, reads_token, setting, 4800)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "setting", "reads_token"), pairwise(["gpt2", "t5"], SETTINGS, [True, False]))
def test_heads_are_lossless_in_every_way(pairs, family, setting, reads_token):
    """With four tokens there are many outcomes; a q that is a little wrong needs this many to show."""
    check_lossless(pairs, family, reads_token, setting, 9600)


@pytest.mark.parametrize("family", ["gpt2", "t5"])
@pytest.mark.parametrize("setting", ["greedy", "temperature-1"])
def test_a_row_does_not_depend_on_its_neighbors(pairs, family, setting):
    target, drafter = pairs(family)
    decoder = Decoder(target, drafter, gamma=Gamma(3), sampling=SETTINGS[setting], strict=True)
    settings = GenerationSettings(max_new_tokens=12, seed=4, ignore_eos=True)
    first = [2, 3, 5, 2, 3]
    alone = decoder.generate([first], settings).sequences[0].tokens
    for others in ([[2]], [[5, 5, 5, 4, 3, 2, 0, 2, 3], [0, 3]]):
        assert decoder.generate([first, *others], settings).sequences[0].tokens == alone
