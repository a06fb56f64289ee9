"""A draft model with mask tokens behind the text, and its trainer."""
