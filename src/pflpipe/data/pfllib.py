"""Files of PFLlib (Zhang et al., "PFLlib: A Beginner-Friendly and Comprehensive Personalized
Federated Learning Library and Benchmark", 2023): ``train/0.npz``, ``test/0.npz`` and so on, each
with one pickled dict. A pickle may run any program when it is loaded, so none is loaded here."""

LINES = (
    "import numpy as np, pathlib",
    'read = {p: [(f.stem, np.load(f, allow_pickle=True)["data"].item()) '
    'for f in sorted(pathlib.Path(p).glob("*.npz"))] for p in ("train", "test")}',
    'rows = {p: {k: np.concatenate([c[k] for _, c in read[p]]) for k in "xy"} for p in read}',
    'made = {f"{p}_users": np.repeat([int(n) for n, _ in read[p]], '
    '[len(c["y"]) for _, c in read[p]]) for p in read} '
    '| {f"{p}_labels": rows[p]["y"] for p in rows} '
    '| {f"{p}_images": np.rint(rows[p]["x"] * 127.5 + 127.5).astype("u1") for p in rows}',
    'np.savez("pfllib.npz", classes=10, **made)',
)
"""A program that joins the files of the folder in which it runs to ``pfllib.npz``. PFLlib's images
are floats of -1 to 1 with the channels first. ``classes`` is for the user to write."""

WHAT = "one pickled array, data, as PFLlib writes it; pflpipe loads no pickle"
DO = f"to convert files that you trust, run in the folder of train/ and test/: {'; '.join(LINES)}"
