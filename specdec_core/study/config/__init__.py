"""What a study file says, checked and expanded. Importing this imports no torch."""
