from tests.model_folder import model_folder  # noqa: F401
