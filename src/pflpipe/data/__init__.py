"""Data sets, their downloads, and their partition over clients."""
