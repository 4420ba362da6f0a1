"""Data sets, their downloads, their partition over clients, and files of the user."""
