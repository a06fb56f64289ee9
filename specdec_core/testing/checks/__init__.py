"""The checks of each kind of plugin."""
