"""Controllers of gamma on both levels of a hierarchy. By themselves they are judged in tests/testing."""

import pytest

from specdec_core import default_registry
from specdec_core.decoding.decoder import Decoder
from specdec_drafters.hierarchical import HierarchicalDrafter
from specdec_drafters.settings import HierarchicalConfig
from tests.catalogue import GAMMAS
from tests.lossless import SETTINGS, VOCAB, doubled_p_value, enumerate_continuations
from tests.tiny import tiny_model
from tests.toys import TableDrafter

SETTING = SETTINGS["temperature-1"]


@pytest.fixture(scope="module")
def expected(target):
    """Return the exact distribution of continuations of four tokens."""
    return enumerate_continuations(target, SETTING, length=4)


@pytest.fixture(scope="module")
def middle(tmp_path_factory):
    """Return the folder of a model that drafts and is drafted for."""
    folder = tmp_path_factory.mktemp("middle")
    tiny_model("llama", VOCAB, seed=5, sharpness=0.8).save_pretrained(folder)
    return folder


def made(who):
    name, settings = GAMMAS[who]
    registry = default_registry()
    return registry.create("gamma", name, registry.spec("gamma", name).config(**settings))


FAST = ("running-average", "confidence-learnt")


# The trees are those of the lower level.
@pytest.mark.filterwarnings("ignore:.* HierarchicalDrafter drafts lines only")
@pytest.mark.parametrize(
    "who", [pytest.param(who, marks=() if who in FAST else pytest.mark.slow) for who in GAMMAS]
)
def test_controllers_on_both_levels_leave_the_targets_distribution(target, expected, middle, who):
    config = HierarchicalConfig(model=str(middle), drafter=TableDrafter(VOCAB), gamma=made(who))
    drafter = HierarchicalDrafter(config, target.info())
    decoder = Decoder(target, drafter, gamma=made(who), sampling=SETTING, strict=True)
    assert doubled_p_value(decoder, expected, 2400, 300, length=4) > 1e-4
