"""The checks themselves, by the kind of plugin and by what they look at."""
