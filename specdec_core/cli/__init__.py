"""The command line: one module a command. Only commands that run models import torch, and only when they run."""
