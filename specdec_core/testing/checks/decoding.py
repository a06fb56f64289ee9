"""Checks of a drafter in the core's own decoding loop, and along recorded texts.

Decoding samples the target's distribution, in no more target calls; a replay expects what decoding counts.
"""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import Drafter, GammaController
from specdec_core.interface.errors import PluginWarning
from specdec_core.interface.settings import SamplingSettings
from specdec_core.interface.tree import TreeShape
from specdec_core.offline.replay.replayed_metrics import TextAcceptance
from specdec_core.offline.replay.text_oracle import OwnTokensError
from specdec_core.testing.checks.drafter import ROWS, TREE, DrafterChecks
from specdec_core.testing.failures import CheckFailure, calling
from specdec_core.testing.harness.enumeration import GREEDY, SAMPLED, exact, require_baseline, require_distribution
from specdec_core.testing.harness.replaying import COUNTS, acceptance_along, decode_and_replay, recorded_texts
from specdec_core.testing.harness.tiny_target import PROMPT, TinyTarget, tiny_loaded_model
from specdec_core.testing.harness.toys import Gamma, Hierarchy

PROMPTS = (*ROWS, (2, 4, 0, 2, 4, 0, 2, 4))
_TEXTS = ((2, 3, 5, 2, 3, 4, 0), (5, 2, 2, 3), (3, 5, 2, 4, 2, 3, 5))
_TEXT = 7
"""The most tokens of a replayed text."""
_LIMIT = 5.0
"""Means differ if they are so many standard errors apart: once in two million times by chance."""
_TOLERANCE = 1e-4


class DecodingChecks(DrafterChecks):
    """Checks in the decoding loop."""

    def test_lossless(self) -> None:
        """Sampled output has the target's exact distribution (chi-square)."""
        for target in self.targets:
            self._require_lossless(target, self.drafter(target), Gamma(3, 2), 2000)

    def test_lossless_top_k(self) -> None:
        """Output is exact at temperature 0.7 with top-k 3."""
        for target in self.targets:
            settings = SamplingSettings(temperature=0.7, top_k=3)
            self._require_lossless(target, self.drafter(target), Gamma(3, 1), 1250, settings)

    def test_lossless_early_stop(self) -> None:
        """Output is exact if a controller stops drafts where q is small."""
        for target in self.targets:
            gamma = Gamma(3, stop_below=0.3)
            self._require_lossless(target, self.drafter(target), gamma, 1250, how=", with drafts that stop early,")

    def test_lossless_trees(self) -> None:
        """Output is exact with trees, sampled and greedy; with lines where the target reads no trees."""
        self.skip_unless_trees()
        for target in self.targets:
            drafter, gamma = self.drafter(target), Gamma(4, 2, tree=TREE)
            lines = pytest.warns(PluginWarning, match="lines are drafted")
            with nullcontext() if target.loaded.family.trees else lines:
                self._require_lossless(target, drafter, gamma, 1000, how=", in trees,")
                require_baseline(target, self._greedy(target, drafter, TREE), PROMPTS)

    def _require_lossless(
        self,
        target: TinyTarget,
        drafter: Drafter,
        gamma: GammaController,
        count: int,
        sampling: SamplingSettings = SAMPLED,
        how: str = "",
    ) -> None:
        """Decode `count` short continuations or more, and compare their counts with their exact probabilities."""
        top_k = "" if sampling.top_k is None else f", top-k {sampling.top_k}"
        require_distribution(
            Decoder(target.loaded, drafter, gamma=gamma, sampling=sampling, strict=True),
            exact(target, sampling),
            f"at temperature {sampling.temperature:g}{top_k}{how} on {target}",
            batch=500,
            min_count=count,
            max_count=8 * count,
            seed=self.seed,
            hint="q is not what tokens were sampled from, or tokens are withheld because of what they are.",
        )

    def _greedy(self, target: TinyTarget, drafter: Drafter, tree: TreeShape | None = None) -> Decoder:
        return Decoder(target.loaded, drafter, gamma=Gamma(4, 2, tree=tree), sampling=GREEDY, strict=True)

    def test_greedy_equals_baseline(self) -> None:
        """Greedy output equals the autoregressive baseline's, in no more target calls."""
        for target in self.targets:
            decoder = self._greedy(target, self.drafter(target))
            for prompts in (*((one,) for one in PROMPTS), PROMPTS):
                require_baseline(target, decoder, prompts, ignore_eos=True)
            require_baseline(target, decoder, PROMPTS)

    @pytest.mark.xfail(reason="optional: for use in `hierarchical`", strict=False)
    def test_inside_hierarchy(self) -> None:
        """It can draft for a model that itself drafts: output is exact, sampled and greedy."""
        for target in self.targets:
            middle = tiny_loaded_model(self.device, encoder_decoder=target.encoder_decoder, seed=5)
            drafter, how = Hierarchy(middle, self.drafter(target), Gamma(2)), ", inside a hierarchy,"
            self._require_lossless(target, drafter, Gamma(3, 2), 500, how=how)
            require_baseline(target, self._greedy(target, drafter), PROMPTS)

    def test_replay_equals_live(self) -> None:
        """A replay of texts expects what decoding them live counts (z-test of means)."""
        for target in self.targets:
            try:
                self._acceptance(target, SAMPLED)
            except OwnTokensError:
                pytest.skip("it draws its tokens itself, not with the request's methods, so it cannot be replayed")
            if not self._replays_as_decoded(target, GREEDY, 4):
                self._replays_as_decoded(target, GREEDY, 200)
            self._replays_as_decoded(target, SAMPLED, 200)

    def _replays_as_decoded(self, target: TinyTarget, sampling: SamplingSettings, count: int) -> bool:
        """Decode texts and replay the drafter on them; return whether nothing was drawn."""
        did = f"decoded and replayed {count} texts at temperature {sampling.temperature:g} on {target}"
        drafter, batch = self.drafter(target), min(100, count)
        if drafter.remembers:
            batch, count = 1, min(count, 25)  # texts of a batch do not learn from each other
            drafter.reset()
        with calling(did):
            both = decode_and_replay(
                target.loaded,
                drafter,
                sampling,
                PROMPT,
                gamma=2,
                max_gamma=3,
                count=count,
                length=_TEXT,
                batch=batch,
                seed=self.seed,
            )
        distance, column = both.farthest()
        if distance > _LIMIT and (both.certain or count > 4):
            live, expected = both.live[:, column].mean(), both.replayed[:, column].mean()
            raise CheckFailure(
                f"{did}, with gamma 2, after drafts of 3 tokens were replayed",
                f"{live:.3f} {COUNTS[column]} of a text live, where {expected:.3f} were expected",
                f"the same on average, within {_LIMIT:g} standard errors (they are {distance:.1f} apart)",
                "Drafts depend on something else than the committed tokens; or a small budget gives another draft "
                "than the beginning of the one for a large budget: then set `drafts_by_budget = True`.",
            )
        return both.certain

    def test_autoregressive_as_declared(self) -> None:
        """If declared `autoregressive`, q does not depend on where a draft began."""
        if not any(self.drafter(target).autoregressive for target in self.targets):
            pytest.skip("it does not declare `autoregressive`")
        for target in self.targets:
            for sampling in (SAMPLED, GREEDY):
                did = f"asked it once per text, and at each position, at temperature {sampling.temperature:g}"
                with calling(did):
                    once, always = (
                        self._acceptance(target, sampling, autoregressive=way) for way in (True, False)
                    )
                for text, (one, other) in enumerate(zip(once, always, strict=True)):
                    _require_equal(did, text, one, other)

    def _acceptance(
        self, target: TinyTarget, sampling: SamplingSettings, *, autoregressive: bool = False
    ) -> list[TextAcceptance]:
        """Return the drafter's acceptance along some texts."""
        # Greedy texts are certain, whatever they are.
        texts = recorded_texts(target.loaded, PROMPT, _TEXTS, SAMPLED, _TEXT)
        options: Any = {"max_gamma": 3, "batch_size": len(texts), "autoregressive": autoregressive}
        return acceptance_along(target.loaded, self.drafter(target), texts, sampling, _TEXT, **options)


def _require_equal(did: str, text: int, once: TextAcceptance, always: TextAcceptance) -> None:
    for position in range(len(once)):
        expected, got = (_drafted(acceptance, position) for acceptance in (once, always))
        if expected[0] != got[0] or not np.allclose(expected[1], got[1], rtol=0, atol=_TOLERANCE):
            raise CheckFailure(
                did,
                f"at position {position} of text {text}, a draft of {got[0]} tokens that is accepted up to each "
                f"with probability {got[1]}",
                f"{expected[0]} tokens, with {expected[1]}, as in drafts that began earlier",
                "Set `autoregressive = False` if q depends on where the draft began.",
            )


def _drafted(acceptance: TextAcceptance, position: int) -> tuple[int, NDArray[np.floating[Any]]]:
    """Return the length of a draft, and with which probability it is accepted up to each token of the text."""
    offered = int(acceptance.offered[position])
    count = min(offered, len(acceptance) - position)
    return offered, np.cumprod(acceptance.accept()[position, :count])
