"""Decoding: the loop, when it ends, what watches it and what it returns."""

from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.metrics import Metrics
from specdec_core.decoding.observers import Observer, ProgressObserver, TraceObserver
from specdec_core.decoding.prompt import Prompt, check_prompts
from specdec_core.decoding.result import BatchResult, Generation, PluginFailure
from specdec_core.decoding.stopping import FinishReason, StopRule

__all__ = [
    "BatchResult",
    "Decoder",
    "FinishReason",
    "Generation",
    "Metrics",
    "Observer",
    "PluginFailure",
    "ProgressObserver",
    "Prompt",
    "StopRule",
    "TraceObserver",
    "check_prompts",
]
