"""Drafters of `tests.toys` that remember earlier requests, installed: `shared` says so, `sly` does not."""

REMEMBERING = """
    from tests.toys import RememberingDrafter

    class Shared(RememberingDrafter):
        def __init__(self, config, target):
            super().__init__(target.vocab_size, declared=config.name == "shared")
            self.config, self.target = config, target
            self.forgets = config.forgets

        def reset(self):
            if self.remembers and self.forgets:
                super().reset()
"""
PLUGIN = """
    from specdec_core import DrafterConfig, PluginSpec, hookimpl

    class SharedConfig(DrafterConfig):
        forgets: bool = True

    @hookimpl
    def specdec_drafters():
        parts = "remembering_parts:Shared", SharedConfig
        return [PluginSpec("drafter", name, *parts) for name in ("shared", "sly")]
"""


def install(site):
    """Install them beside what is installed."""
    site.module("remembering_parts", REMEMBERING)
    site.install("specdec-remembering", "remembering_plugin", PLUGIN)
