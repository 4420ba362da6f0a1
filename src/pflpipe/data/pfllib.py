"""Files of PFLlib (Zhang et al., "PFLlib: A Beginner-Friendly and Comprehensive Personalized
Federated Learning Library and Benchmark", 2023): ``train/0.npz``, ``test/0.npz`` and so on, each
with one pickled dict. A pickle may run any program when it is loaded, so none is loaded here."""

from pathlib import Path

LINES = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
"""A program that joins the files of the folder in which it runs to ``pfllib.npz``. PFLlib's images
are floats of -1 to 1 with the channels first. ``classes`` is for the user to write."""

WHAT = "one pickled array, data, as PFLlib writes it; pflpipe loads no pickle"
DO = f"to convert files that you trust, run in the folder of train/ and test/: {'; '.join(LINES)}"
