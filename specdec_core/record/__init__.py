"""What a target said: its texts, with the probability of each token, to replay drafters on. Imports no torch."""
