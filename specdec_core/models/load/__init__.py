"""Loading a model: finding its files, reading them, and testing unknown families."""
