"""The decoding loop behind transformers' own `generate`: a callable for its argument `custom_generate`."""
