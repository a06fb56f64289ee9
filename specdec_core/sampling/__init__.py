"""From logits to tokens: adjusted distributions, random generators, draws from a few candidates."""
