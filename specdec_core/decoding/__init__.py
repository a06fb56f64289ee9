"""Decoding: the loop, its metrics, observers and result."""

from specdec_core.decoding.arguments import (
    DrafterLike,
    GammaLike,
    LenienceLike,
    RuleLike,
    make_drafter,
    make_gamma,
    make_lenience,
    make_rule,
)
from specdec_core.decoding.chat import Chat, Conversations, answers, check_converses
from specdec_core.decoding.counts import Metrics, RequestMetrics
from specdec_core.decoding.custom_generate.function import GenerateWith, generate_with
from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.guard import PluginFailure, failure_text
from specdec_core.decoding.observers import Observer, TraceObserver, stream_text
from specdec_core.decoding.prompt_ids import Prompt, check_prompts
from specdec_core.decoding.request import greedy_request
from specdec_core.decoding.result import BatchResult, Generation
from specdec_core.decoding.rows import FinishReason, StopRule, TokenView
from specdec_core.decoding.thinking import thinking_marks, thinking_span
from specdec_core.decoding.validation import check_form
from specdec_core.models.chat_template import Turn
from specdec_core.sampling.generators import row_seed

__all__ = [
    "BatchResult",
    "Chat",
    "Conversations",
    "Decoder",
    "DrafterLike",
    "FinishReason",
    "GammaLike",
    "GenerateWith",
    "Generation",
    "LenienceLike",
    "Metrics",
    "Observer",
    "PluginFailure",
    "Prompt",
    "RequestMetrics",
    "RuleLike",
    "StopRule",
    "TokenView",
    "TraceObserver",
    "Turn",
    "answers",
    "check_converses",
    "check_form",
    "check_prompts",
    "failure_text",
    "generate_with",
    "greedy_request",
    "make_drafter",
    "make_gamma",
    "make_lenience",
    "make_rule",
    "row_seed",
    "stream_text",
    "thinking_marks",
    "thinking_span",
]
