"""Attacks on the whole program: hostile plugins, files, folders and signals, drawn at random from a seed."""
