"""The command line, and the functions behind the Snakefile."""
