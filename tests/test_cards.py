"""What the site and the terminal say of methods and of a study's words is all there, and true."""

import ast
import contextlib
import json
import re
import runpy
import shutil
import textwrap
import types
from pathlib import Path

import pytest
import yaml

import tabled
from pages import study_page
from pflpipe import cells
from pflpipe.errors import ConfigError
from pflpipe.methods import plugins, registry
from pflpipe.methods.base import no_state
from pflpipe.report import audit_table, cards, tidy
from pflpipe.simulation import rounds, runs, scores
from pflpipe.study import documents, init
from pflpipe.study.load import load_outline

TABLES = tabled.table("test_cards")
ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
BIB = (ROOT / "src/pflpipe/methods/citations.bib").read_text(encoding="utf-8")
BASELINES = {"local_only", "own_constant"}  # proposed by nobody


def lines(card: str, start: str) -> list[str]:
    return [line for line in card.splitlines() if line.startswith(start)]


@pytest.mark.parametrize("name", registry.NAMES)
def test_a_card_says_what_a_client_does_what_is_claimed_every_knob_and_what_to_cite(name):
    card = cards.card(name)
    entry = registry.info(name)
    assert card.startswith(f"## {name}\n\n")
    for word in ("A client minimises", "It sends", "It keeps", "Tested as its personal model"):
        (line,) = lines(card, f"- {word}: ")
        assert len(line) > len(f"- {word}: ")
    for knob, parameter in entry.hyperparameters.items():
        (line,) = lines(card, f"- `{knob}` = ")
        written = yaml.safe_load(re.match(r"- `\w+` = `(.*?)`, ", line)[1])
        assert type(parameter.default)(written) == parameter.default
        assert re.search(r": .{3,}\. Default: .{3,}\.", line), f"{knob}: no meaning or no origin"
    assert re.search(r"\*\*Claim\*\*\n\n- .*\*\*(certified|nominal|none)\*\*", card)
    assert ("```bibtex\n@" in card) == (name not in BASELINES)


@pytest.mark.parametrize("name", registry.NAMES)
def test_a_card_claims_what_a_run_of_each_profile_would(name):
    card, about = cards.card(name), registry.info(name).about
    if not about.private:
        assert len(lines(card, "- **none**: ")) == 1
        return
    versions = {"`profile: strict`": ("strict", False), "`profile: paper`": ("paper", False)}
    if about.official_departures:
        versions["`profile: paper` with `official_code: true`"] = ("paper", True)
    claims = card.partition("**Claim**\n\n")[2].partition("\n\n")[0]
    of = re.findall(r"^- (.*?): (\*\*.*)$", claims, re.M)
    for words, version in versions.items():
        found = registry.departures(name, *version)
        (own,) = (claim for named, claim in of if words in named.split(" and "))
        assert ("**certified**" in own) == (not found)
        assert all(f"`{departure}`: " in own for departure in found)


@pytest.mark.parametrize("name", registry.NAMES)
def test_a_card_that_goes_by_somebodys_code_names_its_repository_commit_and_functions(name):
    text = ast.get_docstring(ast.parse(Path(plugins.file_of(name)).read_bytes()))
    text = text.replace("no official code", "")
    code = cards.header(name).formulas.get("code", "")
    assert code or not re.search(r"(official|authors'|CENTAUR's) code\b(?! of)", text)
    if code:
        place, _, functions = code.partition(": ")
        assert re.fullmatch(r"[\w-]+/[\w-]+ [0-9a-f]{7}( \(.+:\d.*\))?", place)
        assert re.search(r"\.py [A-Za-z_]\w+", functions)
        assert f"- Official code that was read: {code}" in cards.card(name)


@pytest.mark.parametrize("name", registry.NAMES)
def test_a_client_that_keeps_nothing_by_its_card_has_no_state(name):
    (line,) = lines(cards.card(name), "- It keeps: ")
    keeps_nothing = registry.info(name).factory().init_client is no_state
    assert (line == "- It keeps: nothing") == keeps_nothing


def refuses(name: str, *model: object, **more: object) -> bool:
    with contextlib.suppress(ConfigError):
        registry.check_model(name, cells.Model(*model, **more))
        return False
    return True


def test_a_card_refuses_the_networks_that_a_study_cannot_have():
    for name in registry.NAMES:
        refused = cards.card(name).partition("**Refuses**")[2]
        bare = "- a network that is nothing but its head" in refused
        plain = "- a network without normalisation layers" in refused
        fitted = "- a network whose layers do not fit its hyper-parameters" in refused
        others = "- a network other than `embedding`" in refused
        assert refuses(name, "cnn_cifar") == (plain or others)
        headless = bare or plain or others or name.startswith("appfl")
        assert refuses(name, "mlp", ()) == headless
        assert fitted == (name in ("appfl", "appfl_steps", "fedala"))
        assert refuses(name, "resnet20") == others
        assert refuses(name, "embedding", (8,), items=5) == plain


def test_what_is_cited_is_bibtex_of_methods_that_there_are():
    entries = re.findall(r"^@\w+{(\w+),\n(.*?)^}", BIB, re.M | re.S)
    assert len(entries) == BIB.count("\n@")
    assert len({key for key, _ in entries}) == len(entries)
    cited = set()
    for key, body in entries:
        fields = dict(re.findall(r"^  (\w+) = {(.*)},$", body, re.M))
        assert len(fields) == body.count("\n"), key  # every line is a field
        assert {"title", "author", "keywords"} <= fields.keys(), key
        assert all(value.count("{") == value.count("}") for value in fields.values()), key
        cited |= set(fields["keywords"].split(", "))
    assert cited == set(registry.NAMES) - BASELINES


def test_a_method_of_ones_own_has_a_card_whatever_its_header_says(tmp_path, monkeypatch):
    card = cards.card("docs/examples/easgd.py:easgd")
    assert card.startswith("## easgd\n\nElastic averaging, EASGD")
    assert "- `force` = `0.5`, a number >= 0 and <= 1: " in card
    assert "bibtex" not in card
    monkeypatch.chdir(tmp_path)
    code = "from pflpipe.methods.dp_fedavg import ABOUT, dp_fedavg as plain\n"
    for header, words in (("", "DP-FedAvg (Geyer et al."), ('"""Only words."""\n', "Only words.")):
        _written(tmp_path / f"own{len(header)}.py", header + code)
        card = cards.card(f"own{len(header)}.py:plain")
        assert card.startswith(f"## plain\n\n{words}")
        assert "**Claim**" in card


def test_the_command_line_prints_the_cards_of_the_methods_named(ran):
    printed = ran("methods", "feddpa", "fedper").out
    assert printed == f"{cards.card('feddpa')}\n\n{cards.card('fedper')}\n"


def test_a_method_that_there_is_not_has_none():
    with pytest.raises(ConfigError, match="did you mean 'feddpa'"):
        cards.card("feddpaa")


def hook(page: str, source: str = "") -> str:
    """A page as the site has it, made of a source of that name or of another."""
    path = DOCS / (source or page)
    file = types.SimpleNamespace(src_uri=page, abs_src_path=str(path))
    of_site = types.SimpleNamespace(file=file, meta={})
    rendered = runpy.run_path(str(DOCS / "rendered.py"))["on_page_markdown"]
    return rendered(path.read_text(encoding="utf-8"), page=of_site)


def test_the_site_is_built_with_the_hook():
    (hooks,) = lines((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), "hooks: ")
    assert "docs/rendered.py" in hooks


def test_the_page_of_methods_has_every_card_and_anchor():
    page = hook("reference/methods.md")
    assert re.findall(r"^## (\w+)$", page, re.M)[-len(registry.NAMES) :] == list(registry.NAMES)
    assert page.count("**Claim**") == len(registry.NAMES)


def test_formulas_of_the_page_are_typeset_and_names_in_code_are_not():
    page = hook("reference/methods.md")
    for text in (*TABLES["FORMULAS"], *TABLES["CODE"]):
        assert text in page, text
    assert not re.findall(r"`[^`\n]*(?: - |\w\^\w|\|_2)[^`\n]*`", page), "a formula as code"


def test_the_page_of_the_notebook_has_its_cells_and_the_outputs_that_are_stored_in_it():
    page = hook("notebook.md", "notebook.ipynb")
    cells = json.loads((DOCS / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    for cell in cells:
        assert "".join(cell["source"]) in page
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert page.count("```text\n") == len(outputs) >= 5
    assert "epsilon_central" in page.partition("```text")[2]


def test_the_source_of_a_default_is_in_the_last_brackets_of_its_line():
    knobs = registry.info("apfl").hyperparameters
    meaning, origin = cards.header("apfl", knobs=knobs).knobs["adaptive"]
    assert meaning.endswith("kept in [0, 1]")
    assert origin == "paper"


PAGE = DOCS / "reference/study.md"
FENCES = re.compile(r"^(#+) (\w+)$|^```yaml\n(.*?)^```|<!-- keys: (\w+) -->", re.M | re.S)


def examples() -> dict[str, list[str]]:
    """Section of the page -> its YAML."""
    found: dict[str, list[str]] = {}
    for heading, name, fence, _ in FENCES.findall(PAGE.read_text(encoding="utf-8")):
        if heading:
            section = name
        elif fence:
            found.setdefault(section, []).append(fence)
    return found


EXAMPLES = [(section, text) for section, texts in examples().items() for text in texts]


def test_the_page_of_a_studys_words_has_every_key_of_every_section():
    page, schema = hook("reference/study.md"), documents.schema()
    assert "<!-- keys" not in page
    named = (*cells.BLOCKS, "method", "paper", "layout", "table")
    blocks = {name: schema["$defs"][name]["properties"] for name in named}
    blocks["study"] = schema["properties"]
    blocks["search"] = schema["properties"]["search"]["properties"]
    blocks["figures"] = schema["$defs"]["figures"]["additionalProperties"]["properties"]
    assert blocks.keys() | {"range"} == study_page.sections().keys()
    for section, keys in blocks.items():
        own = re.split(rf"^## {section}$", page, flags=re.M)[1].split("\n## ")[0]
        for key in keys:
            (line,) = lines(own, f"- `{key}` (")
            assert re.fullmatch(r"- `\w+` \(.+\): .{4,}\.", line), line


@pytest.mark.parametrize("section", TABLES["KEYS"])
def test_what_is_said_of_a_key_is_what_the_schema_says(section):
    words = study_page.keys(section)
    assert [said for said in TABLES["KEYS"][section] if said not in words] == []


def keys_of(value: object) -> set[str]:
    """All keys of a document, at any depth; a dotted path is one of its last word too."""
    if isinstance(value, dict):
        own = {word for key in value for word in (key, key.rpartition(".")[2])}
        return own.union(*(keys_of(item) for item in value.values()))
    return set().union(*(keys_of(item) for item in value)) if isinstance(value, list) else set()


def test_every_key_of_a_study_is_in_an_example_of_its_section():
    found = {
        section: keys_of([yaml.safe_load(text) for text in texts])
        for section, texts in examples().items()
    }
    shared = {"layout": "paper", "range": "search"}
    shown_elsewhere = {"study": {"paper", "layout", "report"}, "method": {"search"}}
    for section, rules in study_page.sections().items():
        missing = rules["properties"].keys() - found[shared.get(section, section)]
        assert not missing - shown_elsewhere.get(section, set()), section


@pytest.mark.slow
@pytest.mark.parametrize(("section", "text"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_every_example_is_a_study_when_it_is_put_into_one(section, text, tmp_path):
    base = yaml.safe_load(init.TEMPLATE.read_text(encoding="utf-8").replace("{name}", "example"))
    document = base | documents.read_yaml(_written(tmp_path / "part.yaml", text))
    (tmp_path / "studies").mkdir()
    _written(tmp_path / "studies/example.yaml", yaml.safe_dump(document))
    shutil.copy(ROOT / "studies/paper_results.yaml", tmp_path / "studies")
    shutil.copytree(DOCS / "examples", tmp_path / "docs/examples")
    assert load_outline("example", tmp_path / "studies").lines


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


NEWCOMERS = (DOCS / "explanation/privacy_for_newcomers.md").read_text(encoding="utf-8")
SAID = re.findall(r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", NEWCOMERS, re.S)


@pytest.mark.docs
@pytest.mark.parametrize(("code", "below"), SAID, ids=range(len(SAID)))
def test_what_a_block_prints_stands_below_it(code, below, capsys):
    exec(compile(code, "page", "exec"), {})
    assert capsys.readouterr().out == textwrap.dedent(below)


def test_every_block_has_what_it_prints_below_it():
    assert len(SAID) == NEWCOMERS.count("```python") > 0


def test_the_glossary_has_every_column_of_every_table():
    said = set(re.findall(r"`(\w+)`", (DOCS / "glossary.md").read_text(encoding="utf-8")))
    tables = tidy.COLUMNS, audit_table.COLUMNS, rounds.COLUMNS, runs.TIMING_COLUMNS, scores.COLUMNS
    assert not set().union(*tables) - said


def test_the_words_of_the_glossary_are_in_order():
    page = (DOCS / "glossary.md").read_text(encoding="utf-8").split("## Columns")[0]
    words = [word.lower() for word in re.findall(r"^\*\*(.+?)\.\*\*", page, re.M)]
    assert words == sorted(words)
