"""The findings of a study: summaries, tables, the report."""
