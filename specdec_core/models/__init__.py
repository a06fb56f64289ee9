"""Models: loading them, and running them with a key-value cache that rolls back.

Importing this package does not import torch; the names below are imported on first use.
"""

from typing import TYPE_CHECKING

from specdec_core._lazy import lazy_imports

if TYPE_CHECKING:
    from specdec_core.models.device import fetched_later, moved, uploaded
    from specdec_core.models.fast.compiling import compile_model
    from specdec_core.models.fast.packing import pack
    from specdec_core.models.fast.quantizing import quantize
    from specdec_core.models.inflation import inflate
    from specdec_core.models.load.checkpoint import without_progress_bar
    from specdec_core.models.load.loading import load_as_set, load_model
    from specdec_core.models.load.model_outline import ModelOutline, load_outline, load_vocabulary
    from specdec_core.models.load.resolve import model_files, model_folder
    from specdec_core.models.load.vocabulary import Vocabulary, vocabulary_difference
    from specdec_core.models.load.wrapping import wrap_model
    from specdec_core.models.loaded import LoadedModel, inspect_family
    from specdec_core.models.run.model_session import ModelSession
    from specdec_core.models.run.positions import position_patch
    from specdec_core.models.variants import first_layers, with_exact_shapes

__all__ = [
    "LoadedModel",
    "ModelOutline",
    "ModelSession",
    "Vocabulary",
    "compile_model",
    "fetched_later",
    "first_layers",
    "inflate",
    "inspect_family",
    "load_as_set",
    "load_model",
    "load_outline",
    "load_vocabulary",
    "model_files",
    "model_folder",
    "moved",
    "pack",
    "position_patch",
    "quantize",
    "uploaded",
    "vocabulary_difference",
    "with_exact_shapes",
    "without_progress_bar",
    "wrap_model",
]

lazy_imports(globals())
