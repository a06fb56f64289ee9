"""The hierarchical drafter: the middle model's own draws, whatever guesses for it, taken back on every level."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from specdec_core import default_registry
from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import BestFirstTree, PluginConfig, TokenTree
from specdec_core.interface.errors import ConfigError, PluginWarning
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import wrap_model
from specdec_core.study import load_study
from specdec_drafters.hierarchical import HierarchicalDrafter
from specdec_drafters.settings import HierarchicalConfig, TransformerConfig
from specdec_drafters.transformer import TransformerDrafter
from tests.drafters.hierarchies import Builder, hierarchy
from tests.lossless import SETTINGS, VOCAB, doubled_p_value, enumerate_continuations, p_value, sample
from tests.tiny import tiny_model
from tests.toys import CountingDrafter, Gamma, TableDrafter

PROMPTS = [[2, 3, 5, 2, 3], [4], [5, 5, 4, 3, 2, 0, 2, 3, 4, 4]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two smaller models for the target of `tests.lossless`."""
    folder = tmp_path_factory.mktemp("models")
    tiny_model("llama", VOCAB, seed=5, sharpness=0.8).save_pretrained(folder / "middle")
    tiny_model("qwen3", VOCAB, seed=7, sharpness=0.8).save_pretrained(folder / "small")
    tiny_model("t5", VOCAB, seed=9, sharpness=0.8).save_pretrained(folder / "t5")
    return folder


def bottoms(folder):
    """What may guess for the middle model: a stochastic table, guesses of its own, a model, a hierarchy again."""
    return {
        "table": lambda _: TableDrafter(VOCAB),
        "counting": lambda _: CountingDrafter(VOCAB),
        "transformer": lambda info: TransformerDrafter(TransformerConfig(model=str(folder / "small")), info),
        "hierarchy": lambda info: HierarchicalDrafter(
            HierarchicalConfig(model=str(folder / "small"), drafter=PluginConfig(), gamma=PluginConfig()),
            replace(info, build=Builder(TableDrafter(VOCAB), Gamma(2))),
        ),
    }


BOTTOMS = ("table", "counting", "transformer", "hierarchy")


HALF, ARGMAX = SamplingSettings(temperature=0.5), SamplingSettings(temperature=0)
TREE, GROWN = TokenTree((-1, -1, 0, 0, 1)), BestFirstTree((3, 2))


@pytest.mark.parametrize(
    ("below", "within"),
    [
        *((below, Gamma(1, 3)) for below in BOTTOMS),
        ("table", Gamma(5, 0, 2, tree=TREE)),
        ("transformer", Gamma(5, 1, tree=GROWN)),
    ],
)
def test_what_it_drafts_is_the_middle_models_own(target, folder, below, within):
    # Where the target is the middle model too, p and q are equal, and each draft token is kept. A q that is not
    # what was sampled, or a stale cache on any level, would show as a rejection.
    same = wrap_model(tiny_model("llama", VOCAB, seed=5, sharpness=0.8).to(target.device))
    drafter = hierarchy(same, folder / "middle", bottoms(folder)[below], within)
    decoder = Decoder(same, drafter, gamma=Gamma(4), strict=True)
    settings = GenerationSettings(max_new_tokens=40, ignore_eos=True)
    metrics = decoder.generate(PROMPTS, settings).metrics
    assert metrics.drafted > 80
    assert metrics.rejected == 0


@pytest.mark.parametrize(
    ("below", "gammas"),
    [
        ("table", (4,)),
        ("counting", (0, 3, 1)),
        pytest.param("transformer", (4,), marks=pytest.mark.slow),
        pytest.param("hierarchy", (0, 3, 1), marks=pytest.mark.slow),
    ],
)
def test_greedy_drafts_are_those_of_the_middle_model_by_itself(target, folder, below, gammas):
    sampling = SamplingSettings(temperature=0)
    settings = GenerationSettings(max_new_tokens=28, ignore_eos=True)
    alone = TransformerDrafter(TransformerConfig(model=str(folder / "middle")), target.info())
    accelerated = hierarchy(target, folder / "middle", bottoms(folder)[below], Gamma(1, 3))

    def run(drafter):
        decoder = Decoder(target, drafter, gamma=Gamma(*gammas), sampling=sampling, strict=True)
        steps = decoder.stream(PROMPTS, settings)
        return [(step.draft_tokens, step.outcome.committed) for step in steps]

    expected = run(alone)
    assert run(accelerated) == expected
    pairs = [pair for drafts, new in expected for pair in zip(drafts, new, strict=True)]
    rejected = sum(len(draft) > len(kept) - 1 for draft, kept in pairs)
    assert rejected > 10, "nothing was taken back: this shows little"


def test_the_level_below_saves_calls_of_the_middle_model(target, folder):
    # The same model below drafts what the middle one would: gamma + 1 tokens a call of the latter.
    same = wrap_model(tiny_model("llama", VOCAB, seed=5, sharpness=0.8).to(target.device))
    settings = GenerationSettings(max_new_tokens=30, ignore_eos=True)

    def calls(gamma):
        def below(info):
            return TransformerDrafter(TransformerConfig(model=str(folder / "middle")), info)

        drafter = hierarchy(same, folder / "middle", below, Gamma(gamma))
        read = []
        forward = drafter.loaded.model.forward

        def counted(*args, **kwargs):
            read.append(kwargs["input_ids"].shape[1])
            return forward(*args, **kwargs)

        drafter.loaded.model.forward = counted
        Decoder(same, drafter, gamma=Gamma(5), strict=True).generate(PROMPTS[:1], settings)
        return read

    prompt = len(PROMPTS[0])
    # Five drafts of five tokens, and four bonus tokens between them; a draft's last token is read with the next.
    assert calls(0) == [prompt, 1, 1, 1, 1] + [2, 1, 1, 1, 1] * 4
    assert calls(4) == [prompt + 4] + [6] * 4


class Heard(Gamma):
    """Keeps the reports of the loop it works for."""

    def open(self, batch_size):
        session = super().open(batch_size)
        self.reports = []
        session.observe = self.reports.append
        return session


@pytest.mark.parametrize("depth", [2, 3])
def test_what_is_taken_back_leaves_no_stale_state_below(target, folder, depth):
    # The same model on every level below the target: a level that drafts from what was taken back is refused by
    # the next one, which costs speed only and shows nowhere else.
    def below(info):
        bottom = TransformerDrafter(TransformerConfig(model=str(folder / "middle")), info)
        return bottom if depth == 2 else hierarchy(target, folder / "middle", bottom, Gamma(2))

    heard = Heard(3, 0, 2)
    decoder = Decoder(
        target, hierarchy(target, folder / "middle", below, heard), gamma=Gamma(4, 3, 0), strict=True
    )
    metrics = decoder.generate(PROMPTS, GenerationSettings(max_new_tokens=30, ignore_eos=True)).metrics
    assert metrics.rejected > 10
    assert sum(sum(report.outcome.drafted) for report in heard.reports) > 40
    assert all(report.outcome.accepted == report.outcome.drafted for report in heard.reports)


def test_the_middle_model_may_be_padded_to_another_vocabulary(target, folder, tmp_path):
    for vocab in (VOCAB + 3, VOCAB - 2):
        middle = wrap_model(tiny_model("llama", vocab, seed=5, sharpness=0.8).to(target.device))
        drafter = hierarchy(target, folder / "middle", lambda _: TableDrafter(VOCAB))
        drafter.loaded = middle
        decoder = Decoder(target, drafter, gamma=Gamma(2), strict=True)
        expected = enumerate_continuations(target, SamplingSettings())
        assert p_value(sample(decoder, 600, 1200), expected) > 1e-4


def test_a_draft_ends_where_the_middle_model_has_no_position_left(target, folder):
    tiny_model("gpt2", VOCAB, seed=5, n_positions=24).save_pretrained(folder / "short")
    drafter = hierarchy(target, folder / "short", lambda _: TableDrafter(VOCAB))
    assert drafter.max_length == 25
    decoder = Decoder(target, drafter, gamma=Gamma(4), strict=True)
    with pytest.warns(PluginWarning, match="takes at most 25 tokens"):
        result = decoder.generate([[2] * 10], GenerationSettings(max_new_tokens=40, ignore_eos=True))
    assert len(result.sequences[0].tokens) == 40
    assert result.metrics.drafted > 0


@pytest.mark.parametrize(
    "below",
    [
        "{name: hierarchical, model: b, gamma: 2, drafter: {name: transformer, model: a}}",
        "{name: chain, drafters: [random, {name: hierarchical, model: a, gamma: 2, drafter: random}]}",
    ],
)
def test_a_model_that_drafts_for_itself_is_refused_where_it_is_written(tmp_path, below):
    study = tmp_path / "study.yaml"
    study.write_text(
        "target: builtin:target\n"
        "prompts: [a]\n"
        "runs:\n"
        f"  - drafter: {{name: hierarchical, model: a, gamma: 2, drafter: {below}}}\n"
        "    gamma: 2\n"
    )
    with pytest.raises(ConfigError, match=r"study.yaml:4:14: runs\[0\].drafter: 'a' appears again below itself"):
        load_study(study)


@pytest.mark.parametrize("middle", [{"name": "early-exit", "layers": 1}, {"name": "quantized", "bits": 8}])
def test_a_drafter_made_of_the_target_is_the_middle_model(target, middle, device):
    if middle["name"] == "quantized" and device != "cpu":
        pytest.importorskip("torchao")
    registry = default_registry()
    made = {
        "middle": registry.spec("drafter", middle["name"]).config(**{k: middle[k] for k in middle if k != "name"}),
        "drafter": PluginConfig(),
        "gamma": PluginConfig(),
    }
    alone = registry.create("drafter", middle["name"], made["middle"], target.info())
    built = {"drafter": [alone, lambda info: TableDrafter(info.vocab_size)], "gamma": [Gamma(2)]}
    seen = []

    def build(kind, config, info):
        seen.append(info)
        one = built[kind].pop(0)
        return one(info) if callable(one) else one

    drafter = HierarchicalDrafter(HierarchicalConfig(**made), replace(target.info(), build=build))
    assert drafter.loaded is alone.loaded
    assert seen[0].model is target
    assert seen[1].model is alone.loaded, "what drafts below is made of the middle model"
    sampling = SETTINGS["temperature-0.7-top-p-0.6"]
    expected = enumerate_continuations(target, sampling, (2, 2), length=4)
    decoder = Decoder(target, drafter, gamma=Gamma(3, 1), sampling=sampling, strict=True)
    assert doubled_p_value(decoder, expected, 1600, prompt=(2, 2), length=4) > 1e-4


@pytest.mark.parametrize("settings", [{}, {"model": "m", "middle": PluginConfig()}])
def test_there_is_one_middle_model(settings):
    with pytest.raises(ValidationError, match="give the middle model: either 'model', or 'middle'"):
        HierarchicalConfig(drafter=PluginConfig(), gamma=PluginConfig(), **settings)


def test_a_middle_without_a_model_is_refused(target):
    config = HierarchicalConfig(middle=TableDrafter(VOCAB), drafter=PluginConfig(), gamma=PluginConfig())
    with pytest.raises(ConfigError, match="'TableDrafter' in 'middle' drafts without its own model"):
        HierarchicalDrafter(config, target.info())
