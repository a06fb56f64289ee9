"""The plugin interface: everything a drafter, controller, acceptance rule or trainer implements or imports.

Importing this imports no torch; the names below are imported on first use.
"""

from typing import TYPE_CHECKING

from specdec_core._lazy import lazy_imports

if TYPE_CHECKING:
    from specdec_core.interface.base_drafters import AutoregressiveDrafter as AutoregressiveDrafter
    from specdec_core.interface.base_drafters import CompositeDrafter as CompositeDrafter
    from specdec_core.interface.base_drafters import DeterministicDrafter as DeterministicDrafter
    from specdec_core.interface.controllers import BatchInfo as BatchInfo
    from specdec_core.interface.controllers import GammaController as GammaController
    from specdec_core.interface.controllers import GammaSession as GammaSession
    from specdec_core.interface.controllers import LenienceController as LenienceController
    from specdec_core.interface.controllers import LenienceSession as LenienceSession
    from specdec_core.interface.drafter import LAST_HIDDEN as LAST_HIDDEN
    from specdec_core.interface.drafter import Drafter as Drafter
    from specdec_core.interface.drafter import DraftRequest as DraftRequest
    from specdec_core.interface.drafter import DraftSession as DraftSession
    from specdec_core.interface.drafter import SessionInfo as SessionInfo
    from specdec_core.interface.drafter import TargetFeatures as TargetFeatures
    from specdec_core.interface.drafter import TargetInfo as TargetInfo
    from specdec_core.interface.errors import ConfigError as ConfigError
    from specdec_core.interface.errors import ModelError as ModelError
    from specdec_core.interface.errors import PluginError as PluginError
    from specdec_core.interface.errors import SpecdecError as SpecdecError
    from specdec_core.interface.outcome import Outcome as Outcome
    from specdec_core.interface.outcome import StepReport as StepReport
    from specdec_core.interface.proposal import Candidates as Candidates
    from specdec_core.interface.proposal import Dense as Dense
    from specdec_core.interface.proposal import PointMass as PointMass
    from specdec_core.interface.proposal import Proposal as Proposal
    from specdec_core.interface.proposal import Sparse as Sparse
    from specdec_core.interface.rules import AcceptanceResult as AcceptanceResult
    from specdec_core.interface.rules import AcceptanceRule as AcceptanceRule
    from specdec_core.interface.settings import ModelSettings as ModelSettings
    from specdec_core.interface.spec import DrafterConfig as DrafterConfig
    from specdec_core.interface.spec import LenienceConfig as LenienceConfig
    from specdec_core.interface.spec import ModelsSpec as ModelsSpec
    from specdec_core.interface.spec import Nested as Nested
    from specdec_core.interface.spec import NestedDrafter as NestedDrafter
    from specdec_core.interface.spec import NestedGamma as NestedGamma
    from specdec_core.interface.spec import PluginConfig as PluginConfig
    from specdec_core.interface.spec import PluginSpec as PluginSpec
    from specdec_core.interface.spec import RuleConfig as RuleConfig
    from specdec_core.interface.spec import TrainerConfig as TrainerConfig
    from specdec_core.interface.trainer import Progress as Progress
    from specdec_core.interface.trainer import Trainer as Trainer
    from specdec_core.interface.trainer import TrainingReport as TrainingReport
    from specdec_core.interface.tree import BestFirstTree as BestFirstTree
    from specdec_core.interface.tree import Branches as Branches
    from specdec_core.interface.tree import TokenTree as TokenTree

lazy_imports(globals())
