"""Speculative decoding with pluggable drafters.

The names below cover decoding with a drafter and writing a plugin; `specdec_core.interface` has the whole plugin
interface. Importing this takes no time: everything is loaded on first use.
"""

from typing import TYPE_CHECKING

from specdec_core._lazy import lazy_imports
from specdec_core._version import installed_version

if TYPE_CHECKING:
    from specdec_core.decoding.counts import Metrics as Metrics
    from specdec_core.decoding.custom_generate.function import generate_with as generate_with
    from specdec_core.decoding.decoder import Decoder as Decoder
    from specdec_core.decoding.observers import Observer as Observer
    from specdec_core.decoding.observers import TraceObserver as TraceObserver
    from specdec_core.decoding.result import BatchResult as BatchResult
    from specdec_core.decoding.result import Generation as Generation
    from specdec_core.interface import AutoregressiveDrafter as AutoregressiveDrafter
    from specdec_core.interface import BatchInfo as BatchInfo
    from specdec_core.interface import DeterministicDrafter as DeterministicDrafter
    from specdec_core.interface import Drafter as Drafter
    from specdec_core.interface import DrafterConfig as DrafterConfig
    from specdec_core.interface import DraftRequest as DraftRequest
    from specdec_core.interface import DraftSession as DraftSession
    from specdec_core.interface import GammaController as GammaController
    from specdec_core.interface import GammaSession as GammaSession
    from specdec_core.interface import LenienceController as LenienceController
    from specdec_core.interface import LenienceSession as LenienceSession
    from specdec_core.interface import ModelsSpec as ModelsSpec
    from specdec_core.interface import Outcome as Outcome
    from specdec_core.interface import PluginConfig as PluginConfig
    from specdec_core.interface import PluginSpec as PluginSpec
    from specdec_core.interface import Proposal as Proposal
    from specdec_core.interface import SessionInfo as SessionInfo
    from specdec_core.interface import SpecdecError as SpecdecError
    from specdec_core.interface import StepReport as StepReport
    from specdec_core.interface import TargetInfo as TargetInfo
    from specdec_core.interface.constraint import Constraint as Constraint
    from specdec_core.interface.errors import PluginWarning as PluginWarning
    from specdec_core.interface.settings import GenerationSettings as GenerationSettings
    from specdec_core.interface.settings import SamplingSettings as SamplingSettings
    from specdec_core.models import LoadedModel as LoadedModel
    from specdec_core.models import load_model as load_model
    from specdec_core.models import wrap_model as wrap_model
    from specdec_core.registry.hookspecs import hookimpl as hookimpl
    from specdec_core.registry.registry import default_registry as default_registry
    from specdec_core.study import Comparison as Comparison
    from specdec_core.study import compare as compare

__version__ = installed_version()

lazy_imports(globals())
