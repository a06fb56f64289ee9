"""A drafter in vLLM, by its interface for custom proposers. Needs no vLLM to be imported."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from specdec_core.decoding.arguments import create_drafter
from specdec_core.decoding.guard import PluginGuard
from specdec_core.decoding.opening import LoopContext
from specdec_core.decoding.proposer import Proposer
from specdec_core.interface import BatchInfo, ConfigError, Drafter, SessionInfo, TargetInfo
from specdec_core.interface.controllers import FixedGamma, FixedGammaConfig
from specdec_core.interface.settings import SamplingSettings
from specdec_core.models.device import inference_only
from specdec_core.models.load.locate import read_tokenizer
from specdec_core.registry.registry import default_registry
from specdec_core.registry.settings_models import plugin_settings
from specdec_core.sampling.generators import RowGenerators
from specdec_core.sampling.logits import LogitsToProbs
from specdec_core.serving.requests import Requests
from specdec_core.serving.vllm_module import check_exportable

_LOG = logging.getLogger(__name__)


class VllmProposer:
    """Base of the classes that vLLM's `method: custom_class` names; `specdec export --to vllm` writes one.

    vLLM verifies every draft token x as if q were a point mass: it accepts x with probability p(x), and otherwise
    samples from p without x. That gives p for every x, however x was chosen, so its output stays lossless. A token
    is then accepted most often if it is the most probable one, so drafters decode greedily here.

    Each request has a session of the drafter. It is told what was committed by comparing texts, since vLLM passes
    neither the names of requests nor what became of a draft: see `Requests`. Rows without new tokens, whose prompt
    is still being read, get no draft. A drafter that fails is logged, and after three steps in a row switched off
    for the request.

    Args:
        vllm_config: vLLM's `VllmConfig`.

    Raises:
        ConfigError: The settings are invalid, or the drafter needs more than token ids.
        PluginError: The drafter cannot be loaded, or does not support the target.

    Attributes:
        settings: The drafter as in a study: its name, or a mapping with `name` and settings.
        folder: Base for relative paths in the settings.
        drafter: The drafter.

    References:
        `vllm/v1/spec_decode/custom_class_proposer.py` of vLLM 0.33.0; the point mass: appendix A.1 of arXiv
        2211.17192.
    """

    settings: ClassVar[str | Mapping[str, Any]]
    folder: ClassVar[str] = ""

    def __init__(self, vllm_config: Any) -> None:
        model_config = vllm_config.model_config
        gamma = vllm_config.speculative_config.num_speculative_tokens
        self._max_length = int(model_config.max_model_len)
        target = _target_info(model_config, Path(self.folder))
        self.drafter = self.make_drafter(target)
        self._gamma = FixedGamma(FixedGammaConfig(gamma=gamma))
        self._guard = PluginGuard(strict=False)
        self._logged: set[tuple[str, str]] = set()
        self._session = SessionInfo(1, target.vocab_size, self._max_length, gamma, target.device)
        self._batch = BatchInfo(1, gamma, (self._max_length,), greedy=True)
        greedy = LogitsToProbs(SamplingSettings(temperature=0))
        self._context = LoopContext(greedy, RowGenerators([0]), self._guard)
        self._requests = Requests(self._open_session)

    def make_drafter(self, target: TargetInfo) -> Drafter:
        """Return the drafter that `settings` names. Override it for one that is not a plugin.

        Args:
            target: vLLM's model: its vocabulary, tokenizer and ends of sequence.
        """
        registry = default_registry()
        config = plugin_settings(registry, "drafter", self.settings)
        check_exportable(registry, config)
        return create_drafter(registry, config, target)

    @inference_only
    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: object = None,  # noqa: ARG002  (of vLLM's interface)
    ) -> list[list[int]]:
        """Draft for the rows of vLLM's batch. vLLM calls this after every forward pass.

        Args:
            sampled_token_ids: The tokens that were just appended to each row: accepted ones, then the recovered or
                bonus token; none where a part of the prompt was read.
            num_tokens_no_spec: `[R]`, the number of tokens of each row, those included. R may exceed the batch.
            token_ids_cpu: `[R, max_model_len]`, the tokens of each row, prompt first.
            slot_mappings: Where keys and values are; not used.

        Returns:
            The draft of each row of `sampled_token_ids`, at most `num_speculative_tokens` ids each.
        """
        rows = [row for row, new in enumerate(sampled_token_ids) if len(new)]
        texts = {row: token_ids_cpu[row, : num_tokens_no_spec[row]] for row in rows}
        # The last position is for the target's own token.
        room = {row: max(self._max_length - len(text) - 1, 0) for row, text in texts.items()}
        drafts = self._requests.draft(texts, room)
        self._guard.step += 1
        self._log_failures()
        return [drafts.get(row, []) for row in range(len(sampled_token_ids))]

    def load_model(self, *args: object, **kwargs: object) -> None:
        """Do nothing: vLLM calls this for proposers with a model."""

    def _open_session(self) -> Proposer:
        return self._context.open_drafting(self.drafter, self._gamma, self._session, self._batch)

    def _log_failures(self) -> None:
        for failure in self._guard.failures:
            if (failure.plugin, failure.message) not in self._logged:
                self._logged.add((failure.plugin, failure.message))
                _LOG.warning("%s. No token is lost: the step goes on without a draft.", failure)


def _target_info(model_config: Any, folder: Path) -> TargetInfo:
    """Return what a drafter may know of vLLM's model."""
    if model_config.is_encoder_decoder:
        raise ConfigError(
            "this model has an encoder, and vLLM does not pass its source to custom proposers; serve it without "
            "speculative_config."
        )
    tokenizer = None
    if not model_config.skip_tokenizer_init:
        options = {"trust_remote_code": model_config.trust_remote_code}
        if model_config.tokenizer_revision is not None:
            options["revision"] = model_config.tokenizer_revision
        tokenizer = read_tokenizer(model_config.tokenizer, options)
    eos = getattr(model_config.hf_text_config, "eos_token_id", None)
    return TargetInfo(
        vocab_size=int(model_config.get_vocab_size()),
        eos_ids=() if eos is None else tuple(eos) if isinstance(eos, list | tuple) else (int(eos),),
        tokenizer=tokenizer,
        folder=folder,
    )
