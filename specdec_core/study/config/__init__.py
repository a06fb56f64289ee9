"""The content of a study file, checked and expanded. Importing this imports no torch."""
