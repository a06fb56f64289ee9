"""The options of the commands, and the study, prompts or settings that they describe."""
