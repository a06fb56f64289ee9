"""Settings that the drafter `translated` takes, and those that it refuses."""

from dataclasses import replace

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from specdec_core import default_registry
from specdec_core.decoding.guard import PluginGuard
from specdec_core.interface import LAST_HIDDEN, ConfigError, ModelError, PluginError, TargetInfo
from specdec_core.interface.errors import PluginWarning
from specdec_core.interface.settings import SamplingSettings
from specdec_core.models import wrap_model
from specdec_core.offline.replay.text_oracle import ForcedContext
from specdec_core.sampling.generators import RowGenerators
from specdec_core.sampling.logits import LogitsToProbs
from specdec_drafters.settings import TranslatedConfig
from specdec_drafters.translated.drafter import TranslatedDrafter
from tests.drafters.support import info_for
from tests.lossless import VOCAB
from tests.spelled import OTHER_VOCAB, SHARED, other_tokenizer, target_tokenizer
from tests.tiny import tiny_model
from tests.toys import CountingDrafter


@pytest.fixture(scope="module")
def info():
    return TargetInfo(VOCAB, (1,), tokenizer=target_tokenizer())


@pytest.fixture(scope="module")
def own_info():
    """The target as a drafter with the other tokenizer sees it."""
    return TargetInfo(OTHER_VOCAB, (2,), tokenizer=other_tokenizer())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with the other tokenizer."""
    folder = tmp_path_factory.mktemp("other")
    tiny_model("llama", OTHER_VOCAB).save_pretrained(folder)
    other_tokenizer().save_pretrained(folder)
    return folder


def translated(drafter, info, method="tli"):
    return TranslatedDrafter(TranslatedConfig(drafter=drafter, method=method), info)


# What cannot be translated is refused.


def settings(**drafter):
    config = default_registry().spec("drafter", drafter["name"]).config
    named = type("Named", (config,), {"__annotations__": {"name": str}, "__module__": __name__})
    return named(**drafter)


def make(info, drafter, **more):
    return default_registry().create("drafter", "translated", TranslatedConfig(drafter=drafter, **more), info)


def test_the_tokenizer_is_that_of_the_drafters_model(info, folder):
    drafter = make(info, settings(name="transformer", model=str(folder)))
    assert drafter.shared.pairs == SHARED
    assert drafter.share == len(SHARED) / OTHER_VOCAB
    named = make(info, settings(name="prompt-copy"), tokenizer=str(folder))
    assert named.drafter.target.vocab_size == OTHER_VOCAB


def test_a_drafter_without_a_tokenizer_must_be_given_one(info):
    with pytest.raises(ConfigError, match=r"'prompt-copy' names no model .* give 'tokenizer'"):
        make(info, settings(name="prompt-copy"))
    with pytest.raises(ConfigError, match="the target has no tokenizer"):
        make(TargetInfo(VOCAB), settings(name="prompt-copy"))
    with pytest.raises(ConfigError, match="its drafter has no tokenizer"):
        translated(CountingDrafter(OTHER_VOCAB), info)


def test_heads_on_the_targets_hidden_states_are_refused(info, own_info):
    heads = CountingDrafter(OTHER_VOCAB)
    heads.target, heads.hidden_layers = own_info, (LAST_HIDDEN,)
    with pytest.raises(PluginError, match="works on the target's hidden states"):
        translated(heads, info)


def test_what_is_made_of_the_targets_weights_is_refused(info, folder):
    model = wrap_model(tiny_model("llama", VOCAB))
    config = TranslatedConfig(drafter=settings(name="quantized"), tokenizer=str(folder))
    registry = default_registry()
    with pytest.raises(PluginError, match="'quantized' is made of the target's own weights, but this"):
        registry.create("drafter", "translated", config, replace(info, model=model))


def test_vocabularies_without_a_common_text_are_refused(info):
    inner = Tokenizer(models.BPE({piece: n for n, piece in enumerate("12345")}, []))
    inner.decoder = decoders.Fuse()
    digits = PreTrainedTokenizerFast(tokenizer_object=inner)
    drafter = CountingDrafter(5)
    drafter.target = TargetInfo(5, tokenizer=digits)
    with pytest.raises(ConfigError, match=r"no text is that of a token in both .*use method: slem"):
        translated(drafter, info)
    translated(drafter, info, "slem")


def test_few_common_texts_are_warned_of(info):
    pieces = {"a": 0} | {str(n): n for n in range(1, 30)}
    inner = Tokenizer(models.BPE(pieces, []))
    inner.decoder = decoders.Fuse()
    drafter = CountingDrafter(30)
    drafter.target = TargetInfo(30, tokenizer=PreTrainedTokenizerFast(tokenizer_object=inner))
    with pytest.warns(PluginWarning, match="only 1 tokens are shared"):
        translated(drafter, info)


def test_a_tokenizer_whose_texts_depend_on_their_neighbors_is_refused(info):
    inner = Tokenizer(models.WordPiece({"a": 0, "##b": 1}, unk_token="a"))
    inner.decoder = decoders.WordPiece()
    drafter = CountingDrafter(2)
    drafter.target = TargetInfo(2, tokenizer=PreTrainedTokenizerFast(tokenizer_object=inner))
    with pytest.raises(ModelError, match="the drafter's tokenizer decodes with WordPiece"):
        translated(drafter, info)


def test_a_hierarchy_in_other_tokens_is_not_replayed():
    generators = RowGenerators([1])
    context = ForcedContext(LogitsToProbs(SamplingSettings()), generators, PluginGuard(strict=True), ((2, 3),))
    session = context.with_loop(info_for(1, VOCAB))
    with pytest.raises(PluginError, match="another tokenizer than the target's cannot be replayed"):
        session.loop(None, None, None, info_for(1, OTHER_VOCAB))
