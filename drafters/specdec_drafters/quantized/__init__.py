"""The quantized drafter: a copy of the target with weights of 8 or 4 bits."""
