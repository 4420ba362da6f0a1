"""Training of one client: networks, solvers, gradients, metrics, and the task of a method."""
