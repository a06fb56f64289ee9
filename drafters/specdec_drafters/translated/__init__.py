"""The translated drafter: a drafter whose tokenizer is not the target's."""
