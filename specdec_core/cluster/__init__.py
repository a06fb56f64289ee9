"""Running jobs in this process or on a Ray cluster. Importing this imports neither Ray nor torch."""
