"""Models: loading them, and running them with a key-value cache that rolls back.

Importing this package does not import torch; the names below are imported on first use.
"""

from typing import TYPE_CHECKING

from specdec_core._lazy import lazy_imports

if TYPE_CHECKING:
    from specdec_core.models.device import fetched_later as fetched_later
    from specdec_core.models.device import moved as moved
    from specdec_core.models.device import uploaded as uploaded
    from specdec_core.models.fast.compiling import compile_model as compile_model
    from specdec_core.models.fast.packing import pack as pack
    from specdec_core.models.fast.quantizing import quantize as quantize
    from specdec_core.models.inflation import inflate as inflate
    from specdec_core.models.load.checkpoint import without_progress_bar as without_progress_bar
    from specdec_core.models.load.loading import load_as_set as load_as_set
    from specdec_core.models.load.loading import load_model as load_model
    from specdec_core.models.load.model_outline import ModelOutline as ModelOutline
    from specdec_core.models.load.model_outline import load_outline as load_outline
    from specdec_core.models.load.model_outline import load_vocabulary as load_vocabulary
    from specdec_core.models.load.resolve import model_files as model_files
    from specdec_core.models.load.resolve import model_folder as model_folder
    from specdec_core.models.load.vocabulary import Vocabulary as Vocabulary
    from specdec_core.models.load.vocabulary import vocabulary_difference as vocabulary_difference
    from specdec_core.models.load.wrapping import wrap_model as wrap_model
    from specdec_core.models.loaded import LoadedModel as LoadedModel
    from specdec_core.models.loaded import inspect_family as inspect_family
    from specdec_core.models.run.model_session import ModelSession as ModelSession
    from specdec_core.models.run.positions import position_patch as position_patch
    from specdec_core.models.variants import first_layers as first_layers
    from specdec_core.models.variants import with_exact_shapes as with_exact_shapes

lazy_imports(globals())
