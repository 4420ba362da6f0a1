"""Studies: from YAML to cells, with all checks before a job starts."""
