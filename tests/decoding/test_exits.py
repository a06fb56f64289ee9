"""`sys.exit` and the like are the failure of the plugin that calls it. Ctrl-C passes, and nothing is left over."""

from __future__ import annotations

import asyncio

import pytest

from specdec_core.decoding import Decoder, Observer
from specdec_core.interface import DeterministicDrafter
from specdec_core.models import wrap_model
from tests.drafters.chains import chain
from tests.drafters.hierarchies import hierarchy
from tests.robustness import plugins
from tests.robustness.plugins import (
    LENGTH,
    PROMPTS,
    VOCAB,
    FaultyDrafter,
    FaultyGamma,
    FaultyLenience,
    OwnError,
    Script,
)
from tests.tiny import tiny_model
from tests.toys import NO_CONFIG, CountingDrafter, Gamma, TableDrafter, target_info

pytestmark = pytest.mark.filterwarnings("ignore::specdec_core.PluginWarning")
EXITS = [SystemExit(0), asyncio.CancelledError(), OwnError(), StopIteration()]


def raising(point, error):
    """A plugin that raises at one point: in a session the second time, in `open` and the like the first time."""

    def act(_):
        raise error

    return Script(point, 1 if point in SESSIONS else 0, act)


SESSIONS = (
    *("drafter.propose", "drafter.commit", "drafter.rollback"),
    *("gamma.plan", "gamma.keep_drafting", "gamma.observe"),
    *("lenience.lenience", "lenience.observe"),
)
POINTS = (
    *SESSIONS,
    *("drafter.hidden_layers", "drafter.open", "drafter.close"),
    *("gamma.max_gamma", "gamma.open", "gamma.uses_confidence", "lenience.open"),
)


@pytest.fixture(scope="module")
def target():
    return plugins.target()


@pytest.fixture(scope="module")
def plain():
    return plugins.expected()


@pytest.fixture(scope="module")
def middle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("middle")
    tiny_model("llama", VOCAB, seed=5).save_pretrained(folder)
    return folder


def decoder(target, script):
    drafter, gamma, lenience = (script.point.startswith(kind) for kind in ("drafter", "gamma", "lenience"))
    return Decoder(
        target,
        FaultyDrafter(script) if drafter else TableDrafter(VOCAB),
        gamma=FaultyGamma(script) if gamma else Gamma(3),
        lenience=FaultyLenience(script) if lenience else None,
        temperature=0,
    )


def texts(result):
    return tuple(row.tokens for row in result.sequences)


@pytest.mark.parametrize("point", [one for one in POINTS if one != "drafter.rollback"])  # no level is above
def test_whatever_a_plugin_raises_is_its_failure(target, plain, point):
    for error in EXITS:
        result = decoder(target, raising(point, error)).generate(PROMPTS, **LENGTH)
        assert texts(result) == plain
        assert {failure.plugin for failure in result.failures} == {f"Faulty{point.partition('.')[0].title()}"}
        assert type(error).__name__ in result.failures[0].message


@pytest.mark.parametrize("method", ["open", "propose", "commit", "rollback", "close"])
def test_below_a_chain_and_a_hierarchy_too(target, plain, middle, method):
    def faulty():
        return FaultyDrafter(raising(f"drafter.{method}", SystemExit(0)))

    def decoded(drafter):
        return Decoder(target, drafter, gamma=Gamma(3), temperature=0).generate(PROMPTS, **LENGTH)

    result = decoded(hierarchy(target, middle, faulty(), Gamma(2)))
    assert texts(result) == plain
    assert [failure.plugin for failure in result.failures] == ["FaultyDrafter"]
    if method != "rollback":
        result = decoded(chain(faulty(), CountingDrafter(VOCAB), vocab=VOCAB))
        assert texts(result) == plain
        assert result.failures[0].message.startswith("'FaultyDrafter' (drafters[0]) failed in ")


@pytest.mark.parametrize(
    "point", ["drafter.hidden_layers", "gamma.max_gamma", "drafter.propose", "lenience.lenience"]
)
def test_ctrl_c_passes_and_the_decoder_can_be_used_again(target, plain, point):
    script = raising(point, KeyboardInterrupt())
    stopped = decoder(target, script)
    with pytest.raises(KeyboardInterrupt):
        stopped.generate(PROMPTS, **LENGTH)
    script.act = None
    again = stopped.generate(PROMPTS, **LENGTH)
    assert texts(again) == plain
    assert not again.failures


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_ctrl_c_in_a_forward_pass_leaves_the_model_as_it_was(family):
    model = tiny_model(family, VOCAB)
    loaded = wrap_model(model)
    lengths = ([3, 4, 5, 6], [7, 8])
    plain = texts(Decoder(loaded, temperature=0).generate(lengths, **LENGTH))
    drafting = Decoder(loaded, TableDrafter(VOCAB), gamma=2, temperature=0)
    modules = [module for name, module in model.named_modules() if name and not list(module.children())]
    for number, module in enumerate(modules[:: max(len(modules) // 6, 1)]):
        calls = []

        def stop(*_, at=number % 4 + 1, calls=calls):
            calls.append(1)
            if len(calls) == at:
                raise KeyboardInterrupt

        hook = module.register_forward_pre_hook(stop)
        try:
            drafting.generate(lengths, **LENGTH)
        except KeyboardInterrupt:
            pass
        finally:
            hook.remove()
        assert texts(drafting.generate(lengths, **LENGTH)) == plain


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

    def fail(*_):
        raise RuntimeError("the observer's own")

    observer = Observer()
    setattr(observer, when, fail)
    decoding = Decoder(target, Closing(NO_CONFIG, target_info(VOCAB)), gamma=2, temperature=0)
    with pytest.raises(RuntimeError, match="the observer's own"):
        decoding.generate(PROMPTS, **LENGTH, observers=[observer])
    assert closed == [1]
    assert texts(decoding.generate(PROMPTS, **LENGTH)) == plain
