"""The functions behind the Snakefile and ``pflpipe status``."""
