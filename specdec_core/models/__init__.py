"""Models: loading them, and running them with a cache that rolls back."""

from specdec_core.models.family import Family, inspect_family
from specdec_core.models.features import ModelFeatures
from specdec_core.models.inflate import inflate
from specdec_core.models.load import load_model, load_vocabulary, without_progress_bar, wrap_model
from specdec_core.models.loaded import LoadedModel
from specdec_core.models.packed import pack
from specdec_core.models.probe import TESTED as TESTED_FAMILIES
from specdec_core.models.session import ModelSession

__all__ = [
    "TESTED_FAMILIES",
    "Family",
    "LoadedModel",
    "ModelFeatures",
    "ModelSession",
    "inflate",
    "inspect_family",
    "load_model",
    "load_vocabulary",
    "pack",
    "without_progress_bar",
    "wrap_model",
]
