"""Results by group of prompts: figures with intervals, tables, and tested differences between runs."""
