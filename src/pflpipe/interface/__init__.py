"""The Python interface: train on your own tensors or a cell of a study, and keep the result."""
