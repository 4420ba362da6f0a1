"""Attacks on the releases of a run, each with all the knowledge of its adversary."""
