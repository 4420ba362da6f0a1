"""The figures of a study, at the widths of a paper's columns."""
