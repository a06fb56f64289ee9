from tests.installed import site, toys  # noqa: F401
