"""Every drafter that ships: a replay expects what live decoding of the same texts counts."""

import numpy as np
import pytest

from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.offline.replay.drafter_replay import DrafterReplay
from specdec_core.testing.harness.replaying import decode_and_replay, memory_record
from tests.catalogue import FORGETFUL, Catalogue
from tests.lossless import small_target
from tests.pairwise import some

PROMPT = (2, 3, 5, 2, 3)
SETTINGS = {
    "greedy": SamplingSettings(temperature=0),
    "temperature-0.7": SamplingSettings(temperature=0.7),
    "temperature-1": SamplingSettings(),
    "top-p-0.8": SamplingSettings(top_p=0.8),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a small target of a family, and its drafters."""
    known = {}

    def made(family):
        if family not in known:
            target = small_target("cpu", family)
            known[family] = target, Catalogue(target, tmp_path_factory.mktemp(family))
        return known[family]

    return made


def agree(made, family, who, setting, count, gamma=2, length=8, **options):
    target, catalogue = made(family)
    return decode_and_replay(
        target,
        catalogue.make(who),
        SETTINGS[setting],
        PROMPT,
        gamma=gamma,
        max_gamma=4,
        count=count,
        length=length,
        batch=min(count, 250),
        **options,
    )


SAMPLED = [(who, "temperature-1") for who in FORGETFUL]
GREEDY = [(who, "greedy") for who in ("random", "copy-recent", "transformer", "heads", "hierarchy-chain")]


@pytest.mark.parametrize(("who", "setting"), some(SAMPLED + GREEDY, 6))
def test_a_replay_expects_what_is_counted_live(made, who, setting):
    both = agree(made, "gpt2", who, setting, 8 if setting == "greedy" and who != "random" else 100)
    assert both.farthest()[0] < 4.5
    assert setting == "greedy" or both.live[:, 1].sum() > 0


def test_drafts_with_settings_of_their_own(made):
    options = {"draft_sampling": SamplingSettings(temperature=0.5)}
    assert agree(made, "gpt2", "transformer", "temperature-1", 100, **options).farthest()[0] < 4.5
    assert agree(made, "gpt2", "heads", "greedy", 100, **options).farthest()[0] < 4.5


DECODER_ONLY = [("gpt2", "temperature-1", 4, 1000), ("gpt2", "top-p-0.8", 3, 400), ("gpt2", "greedy", 4, 100)]
ENCODER_DECODER = [("t5", "temperature-0.7", 1, 400), ("t5", "top-p-0.8", 4, 400)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("who", "family", "setting", "gamma", "count"),
    [
        (who, *cases[number % len(cases)])
        for number, who in enumerate(FORGETFUL)
        for cases in [(DECODER_ONLY, ENCODER_DECODER)[number % 2]]
    ],
)
def test_live_decoding_agrees_for_both_kinds_of_target(made, who, family, setting, gamma, count):
    """An error of a tenth of a token per text would show; `test_exact_counts.py` shows smaller ones."""
    assert agree(made, family, who, setting, count, gamma).farthest()[0] < 4.5


@pytest.mark.parametrize(
    "who",
    [pytest.param(who, marks=pytest.mark.slow if number % 5 else ()) for number, who in enumerate(FORGETFUL)],
)
def test_asking_once_per_text_equals_asking_at_every_position(made, who):
    target, catalogue = made("gpt2")
    drafter = catalogue.make(who)
    if not drafter.autoregressive:
        pytest.skip("it is asked at every position anyway")
    for setting in ("temperature-1", "greedy"):
        texts = agree(made, "gpt2", "random", setting, 6, length=11).texts
        record, part = memory_record(target, texts, SETTINGS[setting], GenerationSettings(max_new_tokens=11))
        once, always = (
            DrafterReplay(record, part, drafter, max_gamma=3, autoregressive=how, batch_size=4).acceptance()
            for how in (True, False)
        )
        for one, other in zip(once, always, strict=True):
            assert one.offered.tolist() == other.offered.tolist()
            for position, count in enumerate(np.minimum(one.offered, len(one) - np.arange(len(one)))):
                assert count <= 3
                np.testing.assert_allclose(
                    _compared(one.accept()[position, :count]),
                    _compared(other.accept()[position, :count]),
                    atol=1e-6,
                )


def _compared(accept):
    """Return acceptance up to the first token that is never accepted: what follows is not read."""
    never = np.flatnonzero(accept == 0)
    return accept[: never[0] + 1] if len(never) else accept
