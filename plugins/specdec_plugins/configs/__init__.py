"""What a study may say about each controller. Importing this imports no torch."""

from specdec_plugins.configs.gamma import FixedGammaConfig
from specdec_plugins.configs.lenience import ConstantLenienceConfig

__all__ = ["ConstantLenienceConfig", "FixedGammaConfig"]
