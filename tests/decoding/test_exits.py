"""`sys.exit` and the like are the failure of the plugin that calls it. Ctrl-C passes, and nothing is left over."""

from __future__ import annotations

import asyncio

import pytest

from specdec_core.decoding import Decoder, Observer
from specdec_core.interface import (
    DeterministicDrafter,
    Drafter,
    DraftSession,
    GammaController,
    GammaSession,
    LenienceController,
    LenienceSession,
    Proposal,
)
from specdec_core.interface.settings import GenerationSettings
from specdec_core.models import wrap_model
from tests.drafters.chains import chain
from tests.drafters.hierarchies import hierarchy
from tests.tiny import tiny_model
from tests.toys import NO_CONFIG, CountingDrafter, Gamma, TableDrafter, target_info

V = 40
PROMPTS = ([3, 4, 5], [7, 8])
SETTINGS = GenerationSettings(max_new_tokens=8, ignore_eos=True)
pytestmark = pytest.mark.filterwarnings("ignore::specdec_core.PluginWarning")


class Quit(BaseException):
    """As libraries have for their own ends."""


EXITS = [SystemExit(0), asyncio.CancelledError(), Quit(), StopIteration()]


class Bomb:
    """Raises in one method of a plugin, the second time that it is called; `open` and the like the first time."""

    def __init__(self, method, error):
        self.method, self.error, self.left = method, error, 1 if "." not in method else 2

    def at(self, method):
        self.left -= method == self.method
        if method == self.method and self.left <= 0 and self.error is not None:
            raise self.error


class BombDrafter(Drafter):
    def __init__(self, bomb):
        super().__init__(NO_CONFIG, target_info(V))
        self.bomb = bomb

    @property
    def hidden_layers(self):
        self.bomb.at("hidden_layers")
        return ()

    def open(self, session):
        self.bomb.at("open")
        return _BombSession(self.bomb)


class _BombSession(DraftSession):
    def __init__(self, bomb):
        self.bomb = bomb

    def propose(self, request):
        self.bomb.at("s.propose")
        return Proposal.from_rows([[5] * n for n in request.budget])

    def commit(self, outcome):
        self.bomb.at("s.commit")

    def rollback(self, lengths):
        self.bomb.at("s.rollback")

    def close(self):
        self.bomb.at("close")


class BombGamma(GammaController):
    def __init__(self, bomb):
        super().__init__(NO_CONFIG)
        self.bomb = bomb

    @property
    def max_gamma(self):
        self.bomb.at("max_gamma")
        return 3

    def open(self, batch):
        self.bomb.at("gamma_open")
        return _BombGammaSession(self.bomb, batch.batch_size)


class _BombGammaSession(GammaSession):
    def __init__(self, bomb, size):
        self.bomb, self.size = bomb, size

    @property
    def uses_confidence(self):
        self.bomb.at("uses_confidence")
        return True

    def plan(self):
        self.bomb.at("s.gamma")
        return [3] * self.size

    def keep_drafting(self, confidence):
        self.bomb.at("s.keep_drafting")
        return [True] * self.size

    def observe(self, report):
        self.bomb.at("s.gamma_observe")


class BombLenience(LenienceController):
    def __init__(self, bomb):
        super().__init__(NO_CONFIG)
        self.bomb = bomb

    def open(self, batch):
        self.bomb.at("lenience_open")
        return _BombLenienceSession(self.bomb, batch.batch_size)


class _BombLenienceSession(LenienceSession):
    def __init__(self, bomb, size):
        self.bomb, self.size = bomb, size

    def lenience(self):
        self.bomb.at("s.lenience")
        return [1.0] * self.size

    def observe(self, report):
        self.bomb.at("s.lenience_observe")


DRAFTER = ["hidden_layers", "open", "s.propose", "s.commit", "close"]
GAMMA = ["max_gamma", "gamma_open", "uses_confidence", "s.gamma", "s.keep_drafting", "s.gamma_observe"]
LENIENCE = ["lenience_open", "s.lenience", "s.lenience_observe"]


@pytest.fixture(scope="module")
def target():
    return wrap_model(tiny_model("llama", V))


@pytest.fixture(scope="module")
def middle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("middle")
    tiny_model("llama", V, seed=5).save_pretrained(folder)
    return folder


def decoder(target, method, bomb, drafter=None):
    own = drafter or (BombDrafter(bomb) if method in DRAFTER else TableDrafter(V))
    gamma = BombGamma(bomb) if method in GAMMA else Gamma(3)
    lenience = BombLenience(bomb) if method in LENIENCE else None
    return Decoder(target, own, gamma=gamma, lenience=lenience, temperature=0)


def texts(result):
    return [row.tokens for row in result.sequences]


@pytest.fixture(scope="module")
def plain(target):
    return texts(Decoder(target, temperature=0).generate(PROMPTS, SETTINGS))


@pytest.mark.parametrize("method", DRAFTER + GAMMA + LENIENCE)
def test_whatever_a_plugin_raises_is_its_failure(target, plain, method):
    for error in EXITS:
        result = decoder(target, method, Bomb(method, error)).generate(PROMPTS, SETTINGS)
        assert texts(result) == plain
        assert {failure.plugin[:4] for failure in result.failures} == {"Bomb"}
        assert type(error).__name__ in result.failures[0].message


@pytest.mark.parametrize("method", ["open", "s.propose", "s.commit", "s.rollback", "close"])
def test_below_a_chain_and_a_hierarchy_too(target, plain, middle, method):
    def bomb():
        return BombDrafter(Bomb(method, SystemExit(0)))

    below = hierarchy(target, middle, bomb(), Gamma(2))
    result = decoder(target, method, None, below).generate(PROMPTS, SETTINGS)
    assert texts(result) == plain
    assert [failure.plugin for failure in result.failures] == ["BombDrafter"]
    if method != "s.rollback":
        result = decoder(target, method, None, chain(bomb(), CountingDrafter(V), vocab=V)).generate(
            PROMPTS, SETTINGS
        )
        assert texts(result) == plain
        assert result.failures[0].message.startswith("'BombDrafter' (drafters[0]) failed in ")


@pytest.mark.parametrize("method", ["hidden_layers", "max_gamma", "s.propose", "s.lenience"])
def test_ctrl_c_passes_and_the_decoder_can_be_used_again(target, plain, method):
    bomb = Bomb(method, KeyboardInterrupt())
    stopped = decoder(target, method, bomb)
    with pytest.raises(KeyboardInterrupt):
        stopped.generate(PROMPTS, SETTINGS)
    bomb.error = None
    again = stopped.generate(PROMPTS, SETTINGS)
    assert texts(again) == plain
    assert not again.failures


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_ctrl_c_in_a_forward_pass_leaves_the_model_as_it_was(family):
    model = tiny_model(family, V)
    loaded = wrap_model(model)
    lengths = ([3, 4, 5, 6], [7, 8])
    plain = texts(Decoder(loaded, temperature=0).generate(lengths, SETTINGS))
    drafting = Decoder(loaded, TableDrafter(V), gamma=2, temperature=0)
    modules = [module for name, module in model.named_modules() if name and not list(module.children())]
    for number, module in enumerate(modules[:: max(len(modules) // 6, 1)]):
        calls = []

        def stop(*_, at=number % 4 + 1, calls=calls):
            calls.append(1)
            if len(calls) == at:
                raise KeyboardInterrupt

        hook = module.register_forward_pre_hook(stop)
        try:
            drafting.generate(lengths, SETTINGS)
        except KeyboardInterrupt:
            pass
        finally:
            hook.remove()
        assert texts(drafting.generate(lengths, SETTINGS)) == plain


@pytest.mark.parametrize("when", ["on_start", "on_step", "on_end"])
def test_what_an_observer_raises_reaches_the_caller_and_the_drafter_is_closed(target, plain, when):
    closed = []

    class Closing(DeterministicDrafter):
        def draft(self, tokens, budget):
            return [5] * budget

        def open(self, session):
            opened = super().open(session)
            opened.close = lambda: closed.append(1)
            return opened

    class Faulty(Observer):
        pass

    def fail(*_):
        raise RuntimeError("the observer's own")

    observer = Faulty()
    setattr(observer, when, fail)
    decoding = Decoder(target, Closing(NO_CONFIG, target_info(V)), gamma=2, temperature=0)
    with pytest.raises(RuntimeError, match="the observer's own"):
        decoding.generate(PROMPTS, SETTINGS, observers=[observer])
    assert closed == [1]
    assert texts(decoding.generate(PROMPTS, SETTINGS)) == plain
