"""How the noise of the rounds of a run belongs together, one class a file: ``independent``,
``band``, ``buffers``. The cost of each follows from its coefficients (correlated.py)."""
