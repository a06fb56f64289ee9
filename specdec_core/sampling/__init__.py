"""From logits to tokens: adjusted distributions, random generators, back-off distributions."""
