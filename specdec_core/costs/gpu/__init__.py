"""The speed-up to expect on a GPU, from counted work and the constants of devices; nothing is measured."""
