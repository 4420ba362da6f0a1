"""The first page says what the studies say: its table and its pictures follow from their
verdicts."""

import re
from pathlib import Path

import pytest
import synthetic

import tabled
from pages import blocks, front, overview
from pages.panel import panels
from pflpipe.methods import registry
from pflpipe.report.verdicts import PAYS, UNDECIDED

ROOT = Path(__file__).resolve().parents[2]
ONE = {"people": (10,), "fractions": (0.2,)}


LEVEL = synthetic.fixed((55, 64, 64), fedrep=(66,), local_only=(60,))


def cells(line: str) -> list[str]:
    return [entry.strip() for entry in line.replace("\\_", "_").strip("|").split(" | ")]


def test_the_table_of_the_first_page_is_that_of_the_results():
    found = {}
    for line in (ROOT / "docs/results.md").read_text().splitlines():
        if line.startswith("| people"):
            study, budget, searched, word, method, *_ = cells(line)
            if word != "placebo":
                found[study, budget] = (word, method, searched)
    for page in front.PAGES:
        text = blocks.split((ROOT / page).read_text(), front.ANSWER, page)[1]
        sums = " ".join(text.split())
        for study, (name, data) in front.PEOPLE.items():
            (row,) = (line for line in text.splitlines() if line.startswith(f"| {data} "))
            known = [found[study, budget] for budget in front.BUDGETS]
            for said, (word, method, _) in zip(cells(row)[3:], known, strict=True):
                title = registry.info(method.split(" (")[0]).about.title
                assert (said == f"**{title}**") == (word == PAYS), (study, said)
                assert (said == UNDECIDED) == (word == UNDECIDED), (study, said)
            assert f"{name} {', '.join(searched for *_, searched in known)}" in sums


def test_a_gain_is_that_over_the_strongest_rival():
    found = {front.MAP: panels(synthetic.made(LEVEL, **ONE, epsilons=(2.0,)))}
    (region,) = front.points(found).to_dict("records")
    assert region["gain"] == pytest.approx(2, abs=0.01)
    assert (region["word"], region["budget"]) == (PAYS, "ε = 2")
    assert not region["without_rounds"]


@pytest.mark.slow
def test_pages_that_ask_get_table_and_pictures_and_no_page_is_a_picture_s_reason(tmp_path):
    (tmp_path / "docs/images").mkdir(parents=True)
    (tmp_path / "README.md").write_text("Nothing.\n")
    found = {"people_spi": panels(synthetic.made(LEVEL, **ONE, epsilons=(0.5, 2.0, 8.0)))}
    found[front.MAP] = found["people_spi"]
    assert front.write(tmp_path, found) == []
    assert list((tmp_path / "docs/images").iterdir()) == []
    (tmp_path / "docs/audit_others.csv").write_text(tabled.table("test_front")["CLAIMS"])
    page = tmp_path / "docs/index.md"
    page.write_text(f"Before.\n{blocks.block(front.ANSWER, '')}\nAfter.\n")
    assert front.write(tmp_path, found) == [page]
    assert re.search(r"Before\.\n.*\*\*FedRep\*\*.*After\.\n", page.read_text(), re.DOTALL)
    assert "| SPI, 135 statements ¹ |" in page.read_text(), "no methods without rounds were tried"
    for name in front.PICTURES:
        assert (tmp_path / "docs/images" / name).read_bytes().startswith(b"\x89PNG")


def test_the_pictures_of_the_first_page_are_small():
    for name in front.PICTURES:
        assert (ROOT / "docs/images" / name).stat().st_size <= 60_000


def test_the_overview_has_every_method_with_what_its_card_says_and_where_it_is_not_beaten(tmp_path):
    lines = ["method,budget,claim,best"]
    lines += ["fedrep,ε = 2,certified,yes", "fedrep (slow),ε = 8,certified,", "apfl,ε = 8,none,yes"]
    lines += ["dp_fedavg,ε = 8,certified,", "dp_fedavg (slow),ε = 8,certified,yes"]
    for name, text in {"one": "\n".join(lines), "map": "people,rows\n1,2"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "table.csv").write_text(text)
    rows = {line.split("](#")[0][3:]: cells(line) for line in overview.table(tmp_path).splitlines()}
    assert len(rows) == 2 + len(registry.NAMES)
    assert rows["FedRep"][2:] == ["``g - g^t``, the change of the body", "the head", "0 of 1", "–"]
    assert rows["DP-FedAvg"][-2:] == ["1 of 1", "one"]
    assert rows["APFL"][-2:] == ["–", "–"]
