"""What a study found out: summaries, tables, the report."""
