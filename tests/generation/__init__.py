"""transformers' generation tests, in shape: families of models, each with plain `generate` and with ours."""
