"""Training of one client: networks, solvers, gradients, and the task that a method sees."""
