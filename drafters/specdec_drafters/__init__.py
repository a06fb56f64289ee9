"""The drafters that ship with specdec, one package each; `plugin` registers them.

They import only public modules of `specdec_core`, like any other plugin.
"""
