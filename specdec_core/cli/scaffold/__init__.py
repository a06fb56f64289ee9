"""Packages for new plugins: names and files. Importing this imports no torch."""
