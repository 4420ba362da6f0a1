"""What the studies publish is described for machines as it is."""

import csv
import hashlib
import json
from pathlib import Path

import synthetic

from pages import croissant

ROOT = Path(__file__).resolve().parents[2] / "docs/results"


def header(table: Path) -> list[str]:
    with table.open(encoding="utf-8", newline="") as lines:
        return next(csv.reader(lines))


def test_the_description_has_every_committed_table_with_its_digest_and_its_columns():
    found = json.loads((ROOT / croissant.NAME).read_text())
    files = [*ROOT.glob(f"*/{croissant.TABLE}"), *ROOT.glob("*/runs.parquet")]
    said = {one["@id"]: one["sha256"] for one in found["distribution"]}
    assert said == {
        str(file.relative_to(ROOT)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files
    }, "renew it with: make results"
    for records in found["recordSet"]:
        columns = [field["source"]["extract"]["column"] for field in records["field"]]
        (file,) = {field["source"]["fileObject"]["@id"] for field in records["field"]}
        if file.endswith(croissant.TABLE):
            assert columns == header(ROOT / file)


def test_columns_have_types_and_ids_without_blanks(tmp_path):
    study = synthetic.made(synthetic.fixed((60, 55, 55)))
    synthetic.save(study, tmp_path)
    folder = tmp_path / "results"
    (folder / study.name / croissant.TABLE).write_text('method,"MB, run"\na,1\n')
    croissant.write(folder, [study])
    table, runs = json.loads((folder / croissant.NAME).read_text())["recordSet"]
    ids = [field["@id"] for field in table["field"]]
    assert ids == ["made_up/table/method", "made_up/table/MB_run"]
    kinds = {field["name"]: field["dataType"] for field in runs["field"]}
    expected = {"line": "sc:Text", "seed": "sc:Integer", "personal_own": "sc:Float"}
    assert expected.items() <= kinds.items()
