"""Rounds of many clients, with checkpoints and the files of a run."""
