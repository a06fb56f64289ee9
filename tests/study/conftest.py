from tests.installed import site, toys  # noqa: F401
from tests.model_folder import model_folder  # noqa: F401
