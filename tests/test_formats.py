"""Formats of docs/own_files.md and tasks of docs/tasks.md go from their file to a table."""

import csv
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
from PIL import Image

import malformed
import tabled
import test_workflow

USERS, EACH = 4, 15
LETTERS = [*"abcde"]
NETWORK = {"name": "mlp", "hidden": [4]}
TABLES = tabled.table("test_formats")


def write_files() -> None:
    """Write a file of each format, of four users with two classes."""
    rng = np.random.default_rng(0)
    who = np.repeat([f"u{user}" for user in range(USERS)], EACH)
    label = np.arange(len(who)) % 2
    table = pd.DataFrame({"person": who, "x": label + rng.normal(size=len(who)), "y": label})
    table["amount"] = 2 * table["x"] + rng.normal(size=len(who))
    table["text"] = ["".join(letters) for letters in rng.choice(LETTERS, (len(who), 4))]
    for ending, separator in {"csv": ",", "tsv": "\t"}.items():
        table.to_csv(f"rows.{ending}", index=False, sep=separator)
    table.to_parquet("rows.parquet")
    data: dict[str, Any] = {}
    for file, key in (("leaf", "x"), ("texts", "text")):
        for user, rows in table.groupby("person"):
            x = rows[[key]].to_numpy().tolist() if key == "x" else rows[key].tolist()
            y = rows["y"].tolist() if key == "x" else [text[-1] for text in x]
            data[str(user)] = {"x": x, "y": y}
        content = {"users": list(data), "user_data": data}
        Path(f"{file}.json").write_text(json.dumps(content))
    with h5py.File("tff.h5", "w") as file:
        for user, rows in table.groupby("person"):
            file[f"examples/{user}/number"] = rows[["x"]].to_numpy()
            file[f"examples/{user}/label"] = rows["y"].to_numpy()
            file[f"examples/{user}/snippets"] = rows["text"].tolist()
    for place, (user, kind) in enumerate(zip(who, label, strict=True)):
        folder = Path("pictures") / user / ["cat", "dog"][kind]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((5, 5), place, np.uint8)).save(folder / f"{place}.png")
    Path("clients.py").write_text(TABLES["CLIENTS"])
    Path("my_loss.py").write_text(TABLES["LOSS"])


@pytest.mark.pipeline
def test_every_format_and_task_goes_from_its_file_to_a_table(here):
    test_workflow.write_project(here)
    write_files()
    cases = TABLES["CASES"]
    blocks = {name: source for name, (source, _, _) in cases.items()}
    malformed.put("datasets", blocks, "config.yaml")(here)
    for name, (_, changes, _) in cases.items():
        loss = {"loss": changes.get("loss", "cross_entropy")}
        block = {"dataset": name, "partition": {"kind": "natural"}, "methods": [{"name": "fedavg"}]}
        block |= {"model": changes.get("model", NETWORK)}
        block |= {"training": test_workflow.STUDY["training"] | loss}
        test_workflow.write_study(here, name, **block)
    test_workflow.snakemake(here, *(f"results/tables/{name}.csv" for name in cases))
    for name, (_, _, metric) in cases.items():
        with Path(f"results/tables/{name}.csv").open() as file:
            (row,) = csv.DictReader(file)
        assert float(row["personal_own"]) >= 0, name
        assert metric in Path(f"results/tables/{name}.md").read_text(), name
