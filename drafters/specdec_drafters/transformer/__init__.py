"""The transformer drafter and its trainer."""
