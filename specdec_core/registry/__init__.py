"""Find, list and create plugins. Importing this package does not import torch.

Plugins import these names from here.
"""

from specdec_core.registry.hookspecs import hookimpl
from specdec_core.registry.nesting import models_in, nested_settings
from specdec_core.registry.requirements import encoder_mismatch
from specdec_core.registry.shipped import is_shipped, shipped_file

__all__ = ["encoder_mismatch", "hookimpl", "is_shipped", "models_in", "nested_settings", "shipped_file"]
