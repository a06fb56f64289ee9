"""The drafter against the target alone: the same tokens, in no more calls."""

from specdec_recent import Recent, RecentConfig

from specdec_core import Decoder, GenerationSettings, SamplingSettings, load_model
from specdec_plugins.configs import FixedGammaConfig
from specdec_plugins.fixed_gamma import FixedGamma

PROMPTS = ["def close(self):\n    self.file.close()\n\ndef open(self):\n", "import os"]


def test_the_text_is_the_targets_own() -> None:
    target = load_model("builtin:target")
    argmax, length = SamplingSettings(temperature=0), GenerationSettings(max_new_tokens=32)
    alone = Decoder(target, sampling=argmax).generate(PROMPTS, length)

    drafter, gamma = Recent(RecentConfig(), target.info()), FixedGamma(FixedGammaConfig(gamma=3))
    drafted = Decoder(target, drafter, gamma=gamma, sampling=argmax, strict=True).generate(PROMPTS, length)

    assert [row.tokens for row in drafted.rows] == [row.tokens for row in alone.rows]
    assert drafted.metrics.target_calls <= alone.metrics.target_calls


def test_it_follows_the_trail() -> None:
    drafter = Recent(RecentConfig(window=6), target=None)  # type: ignore[arg-type]  # it does not look at it
    assert drafter.draft([9, 4, 1, 2, 3, 1], budget=4) == [2, 3, 1, 2]
    assert drafter.draft([1, 2, 3], budget=4) == []
