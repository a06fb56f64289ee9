"""The checks, by kind of plugin and by topic."""
