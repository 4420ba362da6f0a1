"""The console script: one clear line and exit code 2 for every mistake, nothing more."""

import collections
import os
import platform
import re
import sys
import typing
from pathlib import Path
from unittest import mock

import pytest
import yaml

import malformed
import pflpipe
import tabled
import warm
from called import called
from pflpipe import errors, program
from pflpipe.data import sources
from pflpipe.errors import PflpipeError
from pflpipe.methods import registry
from pflpipe.pipeline import cli
from pflpipe.study import check
from pflpipe.study.load import load_study

TABLES = tabled.table("test_cli")


def lines(ran, *words: str) -> list[str]:
    """Run a command that is refused; return the lines of its errors."""
    output = ran(*words, code=2)
    assert output.out == ""
    found = output.err.splitlines()
    assert all(line.startswith("error: ") for line in found)
    return [line.removeprefix("error: ") for line in found]


OK = "good: 6 cells, fedavg, dp_fedavg, feddpa on digits: ok\n"


def test_a_library_that_is_not_installed_is_one_line_that_says_what_to_install(ran, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    (line,) = lines(ran, "completion", "bash")
    assert line.startswith("Python module 'shtab' is not installed; pip install ")


STORE = malformed.put("store", "s3://bucket/lab", "config.yaml")


def test_a_store_without_its_plugin_is_one_line_that_says_what_to_install(good, ran, monkeypatch):
    STORE(good)
    monkeypatch.setitem(sys.modules, check.S3_PLUGIN, None)
    assert lines(ran, "validate") == [TABLES["NO_PLUGIN"]]


@pytest.mark.pipeline
def test_snakemake_refuses_a_store_without_its_plugin_in_the_same_line(good):
    STORE(good)
    program = f"import sys; sys.modules[{check.S3_PLUGIN!r}] = None\n"
    program += "from snakemake.cli import main; main()"
    words = ("--dry-run", "--snakefile", str(malformed.ROOT / "Snakefile"))
    refused = warm.python(program, ("snakemake", *words), good, os.environ)
    assert refused.returncode == 2
    said, refusal = refused.stderr.splitlines()
    assert refused.stdout == ""
    assert said.startswith("Using workflow specific profile")
    assert refusal.startswith("error: config.yaml: store; got 's3://bucket/lab'; expected")


def test_runs_in_a_store_are_exported_by_snakemake_alone(good, ran):
    STORE(good)
    assert lines(ran, "track", "good") == [TABLES["NOT_EXPORTED"]]


@pytest.mark.slow
@pytest.mark.parametrize("name", malformed.CASES)
def test_a_malformed_config_gives_one_clear_line_and_exit_code_2(name, good, ran):
    case = malformed.CASES[name]
    case.damage(good)
    (line,) = lines(ran, "validate")
    for word in case.words:
        assert word in line
    parts = line.split(";")[0].split(": ")
    assert len(parts) == len(set(parts)), "no location is named twice"


def test_all_mistakes_of_all_files_are_told_at_once(good, ran):
    malformed.write(good / "studies/other.yaml", malformed.STUDY)
    malformed.write(good / "studies/gone.yaml", malformed.STUDY | {"dataset": "gone"})
    for file, path, value in TABLES["DAMAGES"]:
        malformed.put(path, value, file)(good)
    found = lines(ran, "validate")
    assert [line.split(";")[0] for line in found] == TABLES["ERRORS"]
    assert "more like it" not in "".join(found), "the runs that follow are no further mistakes"


def test_all_mistakes_of_config_yaml_are_told_at_once(good, ran):
    mistakes = {"studies": [], "backend": "lop", "processes": 0, "dat_dir": "d"}
    malformed.write(good / "config.yaml", mistakes)
    assert [line.split(";")[0] for line in lines(ran, "validate")] == TABLES["OF_CONFIG"]


def test_what_is_wrong_with_the_data_of_several_runs_is_told_once_for_each_mistake(good, ran):
    two = {"cases": [{"dataset": "minst"}, {"partition": {"min_size": 500}}]}
    malformed.put("axes", two)(good)
    found = [line.split(";")[0].partition(": ")[2] for line in lines(ran, "validate")]
    assert found == ["dataset 'minst' is not known", "partition"]


def test_messages_name_the_config_file_that_was_given(good, ran):
    (good / "config.yaml").rename(good / "mine.yaml")
    ran("validate", "--config", "mine.yaml")
    malformed.put("studies", ["god", "good"], "mine.yaml")(good)
    malformed.put("datasets", {"gone": "gone.npz"}, "mine.yaml")(good)
    malformed.put("dataset", "gone")(good)
    found = lines(ran, "validate", "--config", "mine.yaml")
    assert [line.split(": ")[0] for line in found] == ["mine.yaml", "mine.yaml"]


def test_data_that_no_study_asked_for_uses_block_nothing_and_are_named(good, ran):
    malformed.put("datasets", {"gone": "gone.npz"}, "config.yaml")(good)
    assert ran("validate", "good").out == OK
    _, warning = ran("validate").out.splitlines()
    assert warning.startswith("warning: config.yaml: datasets.gone: gone.npz does not exist")


def test_the_studies_of_the_config_do_not_matter_to_a_study_asked_for(good, ran):
    malformed.put("studies", ["god"], "config.yaml")(good)
    assert ran("validate", "good").out == OK


@pytest.mark.parametrize(("key", "known", "answer"), TABLES["GUESSES"])
def test_a_guess_is_near_or_not_made(key, known, answer):
    assert errors.nearest(key, known) == answer


def test_a_broken_study_disturbs_nobody_who_does_not_ask_for_it_and_is_named_in_the_list(good, ran):
    (good / "studies/broken.yaml").write_text("title: [")
    assert ran("validate").out == OK
    (line,) = lines(ran, "validate", "broken")
    assert line.startswith("studies/broken.yaml: line 2, column 1: not valid YAML")
    printed = ran("studies").out
    assert "good: A good study\n" in printed
    assert f"\nStudies with errors:\n{line}" in printed


def test_methods_lists_defaults_and_the_claim_and_departures_of_each_profile(ran):
    blocks = dict(re.findall(r"^(\w+): (.*?)(?=^\w|\Z)", ran("methods").out, flags=re.M | re.S))
    assert tuple(blocks) == registry.NAMES
    for name, block in blocks.items():
        found = dict(re.findall(r"^    profile ([\w, ]+): (.*)$", block, flags=re.M))
        about, hyperparameters = registry.info(name).about, registry.info(name).hyperparameters
        for key, parameter in hyperparameters.items():
            assert f"    {key} = {parameter.default!r}" in block
        profiles = {"strict": ("strict", False), "paper": ("paper", False)}
        if about.official_departures:
            profiles["paper, official code"] = ("paper", True)
        assert found.keys() == profiles.keys()
        for profile, line in found.items():
            departures = registry.departures(name, *profiles[profile])
            claim = "none" if not about.private else "nominal" if departures else "certified"
            assert re.match(r"claim (\w+)", line)[1] == claim
            assert set(line.partition("; departures ")[2].split(", ")) - {""} == set(departures)


def test_the_version_is_told(ran):
    assert ran("--version").out == f"pflpipe {pflpipe.__version__}\n"


def test_studies_are_listed_by_purpose_the_quickest_first(good, ran):
    for name, changes in TABLES["LISTED"].items():
        malformed.write(good / f"studies/{name}.yaml", malformed.STUDY | changes)
    malformed.put("search", {"seeds": [7], "validation_fraction": 0.2})(good)
    malformed.put("methods.1.search", {"training.lr": [0.1, 0.3]})(good)
    printed = ran("studies").out
    heads = re.findall(r"^(\S.*):$|^(\w+): ", printed, flags=re.M)
    assert ["".join(head) for head in heads] == TABLES["HEADINGS"]
    assert "quick: Quick\n    3 runs, about 0 s; 3 cells" in printed
    assert "    8 runs, about 0 s; 6 cells after a search of 2" in printed
    assert "estimates" in printed.splitlines()[-1]


def test_a_study_that_was_begun_is_accepted_as_it_is(here, monkeypatch, ran):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert ran("init", "mine").out.splitlines() == TABLES["BEGUN"]
    assert ran("validate").out.startswith("mine: 12 cells, ")


def test_init_prints_commands_that_can_be_typed_without_a_path(here, monkeypatch, ran):
    monkeypatch.setenv("PATH", "")
    for programs in (Path(sys.executable).parent, here / ".venv/bin"):
        monkeypatch.setattr(sys, "executable", str(programs / "python"))
        *_, check, start = ran("init", f"mine{len(programs.parts)}").out.splitlines()
        shown = ".venv/bin" if here in programs.parents else programs
        assert check.startswith(f"next: {shown}/pflpipe validate ")
        assert start.startswith(f"then: {shown}/pflpipe run ")


def test_what_a_begun_study_suggests_in_its_comments_is_accepted_too(here, ran):
    ran("init", "mine")
    file = here / "studies/mine.yaml"
    suggested = r"^# (?=axes:|  privacy\.|  - name: |    search:|search:)"
    text, number = re.subn(suggested, "", file.read_text(), flags=re.M)
    assert number == 5
    file.write_text(text)
    assert "24 cells after a search of 12," in ran("validate").out


ROWS = {"file": "rows.csv", "user": "person", "label": "y", "classes": 2}
"""A block of config.yaml that declares users."""
WAYS_ON = re.escape("partition: {kind: natural}") + ".*" + re.escape("kind: iid, users: ignored, ")


@pytest.fixture
def people(here):
    """Return a folder with a table of ten people, its block in config.yaml and no study."""
    lines = [f"p{row % 10},{row % 7},{row % 2}" for row in range(200)]
    (here / "rows.csv").write_text("\n".join(["person,x,y", *lines]))
    (here / "studies").mkdir()
    declare(here, {"digits_too": "d.npz", "patients": ROWS})
    return here


def declare(folder, datasets, study="mine"):
    malformed.write(folder / "config.yaml", {"studies": [study], "datasets": datasets})


def ask(folder, **words):
    """Ask in a study for the patients, and for what the words say."""
    malformed.write(folder / "studies/mine.yaml", malformed.STUDY | {"dataset": "patients"} | words)


def test_a_begun_study_has_users_for_clients_where_the_block_declares_them(people, ran):
    ran("init", "mine")
    document = yaml.safe_load((people / "studies/mine.yaml").read_text())
    assert (document["dataset"], document["partition"]) == ("patients", {"kind": "natural"})
    assert "on patients: ok" in ran("validate").out
    declare(people, {"mine": {"file": "rows.csv", "user": "person", "target": "x"}}, "third")
    ran("init", "third")
    assert "on mine: ok" in ran("validate").out
    without_user = {"file": "rows.csv", "label": "y", "classes": 2}
    declare(people, {"rows": without_user, "patients": ROWS})
    ran("init", "second")
    assert "dataset: patients\n" in (people / "studies/second.yaml").read_text()


@pytest.mark.parametrize("is_made", [False, True], ids=["before the data are made", "after"])
def test_rows_of_declared_users_are_not_dealt_without_a_word(is_made, people, ran):
    wish = {"kind": "iid", "clients": 5}
    ask(people, partition=wish)
    if is_made:
        sources.prepare("patients", ROWS, people, people / "data/patients.npz")
    for command in ("validate", *(["plan mine"] if is_made else [])):
        (line,) = lines(ran, *command.split())
        assert re.search(WAYS_ON, line)
    small = {"epsilon": 8, "delta": 0.01, "clip_norm": 0.5}
    for partition in (wish | {"users": "ignored", "max_clients_per_user": 2}, {"kind": "natural"}):
        ask(people, partition=partition, privacy=small)
        assert ": ok" in ran("validate").out


@pytest.mark.parametrize(("changes", "loss", "words"), TABLES["LABELS"])
def test_a_loss_that_does_not_fit_a_blocks_labels_is_refused(changes, loss, words, people, ran):
    declare(people, {"patients": {"file": "rows.csv", "user": "person"} | changes})
    training = malformed.STUDY["training"] | ({"loss": loss} if loss else {})
    ask(people, partition={"kind": "natural"}, training=training)
    (line,) = lines(ran, "validate")
    assert re.search(f"training.loss .*{words}", line)


def test_missing_values_that_follow_from_a_persons_rows_are_not_dealt(people, ran):
    declare(people, {"patients": ROWS | {"missing": {"x": "median"}, "ranges": {"x": [0, 6]}}})
    ask(people, partition={"kind": "iid", "clients": 5, "users": "ignored"})
    missing = r"partition.kind iid: missing; got {'x': 'median'}; "
    assert re.search(f"{missing}.*value or indicator in datasets.pat", ran("validate", code=2).err)
    ask(people, partition={"kind": "natural"})
    assert ": ok" in ran("validate").out


def test_init_leaves_files_that_are_there_alone(good, ran):
    files = good / "studies/good.yaml", good / "config.yaml"
    before = [file.read_text() for file in files]
    assert "exists already" in ran("init", "good", code=2).err
    assert ran("init", "other").out.startswith("studies/other.yaml: written\nnext")
    assert [file.read_text() for file in files] == before


@pytest.mark.parametrize("name", ["../x", "all", "a-b", ""])
def test_init_refuses_a_name_that_no_study_can_have(name, good, ran):
    assert "letters, digits and _" in ran("init", name, code=2).err


@pytest.mark.parametrize("shell", typing.get_args(cli.Shell))
def test_every_shell_completes_commands_and_names_of_studies(shell, ran):
    printed = ran("completion", shell).out
    for word in ("validate", "compare", "ls studies"):
        assert word in printed


@pytest.mark.parametrize(("words", "completed"), TABLES["COMPLETED"])
def test_bash_completes_studies_methods_and_data_sets(words, completed, good, ran):
    (good / "rows.csv").write_text("who,y\n")
    (good / "complete.sh").write_text(ran("completion", "bash").out)
    typed = f"COMP_WORDS=(pflpipe {words}); COMP_CWORD=2"
    ask = f"{typed}; _shtab_pflpipe; echo ${{COMPREPLY[@]}}"
    assert called("bash", "-c", f". ./complete.sh; {ask}").stdout == f"{completed}\n"


@pytest.mark.parametrize("command", sorted(cli._commands(cli._parser())))
def test_a_mistyped_option_of_any_command_is_one_line_that_says_which_was_meant(command, ran):
    needed = {"compare": "a b", "completion": "bash", "flower": "a b", "audit": "a --clients 3"}
    needed |= dict.fromkeys(("quickstart", "methods", "studies", "status"), "")
    (line,) = lines(ran, command, *needed.get(command, "a").split(), "--hlep")
    assert line.startswith(f"pflpipe {command}: unknown option '--hlep'; did you mean")
    assert line.endswith("'--help'?")


@pytest.mark.parametrize(("words", "said"), TABLES["MISTAKES"])
def test_a_mistake_in_the_words_of_a_command_is_one_line(words, said, ran):
    (line,) = lines(ran, *words.split())
    assert re.fullmatch(said, line)


def test_help_is_a_map_of_all_commands_with_examples_that_can_be_typed(ran):
    printed, parser = ran("--help").out, cli._parser()
    listed = re.findall(r"^  ([a-z]+)  +\S", printed, flags=re.M)
    assert sorted(listed) == sorted(cli._commands(parser))
    examples = re.findall(r"^    pflpipe (.*)$", printed, flags=re.M)
    assert len(examples) == len(cli.GROUPS)
    for example in examples:
        parser.parse_args(example.split())


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        program.run_script(mock.Mock(side_effect=ZeroDivisionError))


@pytest.mark.parametrize(
    ("error", "code"), [(None, 0), (PflpipeError("no"), 2), (KeyboardInterrupt(), 130)]
)
def test_run_script_maps_endings_to_exit_codes(error, code):
    with pytest.raises(SystemExit) as stopped:
        program.run_script(mock.Mock(side_effect=error))
    assert stopped.value.code == code


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("--tables a b --out c", ([Path("a"), Path("b")], Path("c"), 1, None)),
        ("--tables --out=c --some-count=2 --source=d", ([], Path("c"), 2, Path("d"))),
        ("--out c", None),
        ("--tables a --out c --some-count many", None),
    ],
)
def test_a_step_takes_the_words_that_its_signature_names(words, given, monkeypatch):
    taken = []

    def step(tables: list[Path], out: Path, some_count: int = 1, source: Path | None = None):
        taken.append((tables, out, some_count, source))

    monkeypatch.setattr("sys.argv", ["step.py", *words.split()])
    with pytest.raises(SystemExit) as stopped:
        program.run_step(step)
    assert (taken, stopped.value.code) == (([given], 0) if given else ([], 2))


def test_starting_the_command_line_imports_nothing_heavy():
    names = ["torch", "numpy", "yaml", "jsonschema", "mlflow", "opacus", "pandas", "matplotlib"]
    check = "import sys, pflpipe.pipeline.cli\n"
    check += f"print([name for name in {names!r} if name in sys.modules])"
    assert called(sys.executable, "-c", check).stdout == "[]\n"


OF_MODEL = "{0}_own,{0}_validation,{0}_common"
SCORES = f"cell,client,train_size,{OF_MODEL.format('personal')},{OF_MODEL.format('global')}\n"


@pytest.fixture
def scored(good):
    """A search over two learning rates in which the second is better on validation and worse on
    test data."""
    malformed.put("axes", {"training.lr": [0.1, 0.5], "privacy.epsilon": [2, 8]})(good)
    folder, texts = good / "results/scores/good", collections.defaultdict(lambda: SCORES)
    folder.mkdir(parents=True)
    for cell in load_study("good").cells:
        reached = 60 + 20 * (cell.training.lr == 0.5) + cell.seed
        texts[cell.method] += f"{cell.id},0,9,{100 - reached},{reached},,,,\n"
        texts[cell.method] += f"{cell.id},1,9,{100 - reached},,,,,\n"
    for method, text in texts.items():
        (folder / f"{method}.csv").write_text(text)
    return folder


def test_rank_orders_sets_by_validation_and_says_that_the_choice_costs_privacy(scored, ran):
    lines = ran("rank", "good").out.splitlines()
    start = lines.index("dp_fedavg")
    assert lines[start + 1] == "   80.50 (ε = 2: 80.50, ε = 8: 80.50)  training.lr=0.5"
    assert lines[start + 2] == "   60.50 (ε = 2: 60.50, ε = 8: 60.50)  training.lr=0.1"
    assert lines[lines.index("fedavg") + 1] == "   80.50 ± 0.71  training.lr=0.5"
    assert "no epsilon accounts for" in lines[-1]


def test_rank_without_scores_says_how_to_make_them(good, ran):
    assert "results/tables/good.csv" in ran("rank", "good", code=2).err


def test_rank_without_validation_examples_says_so(scored, ran):
    for file in scored.iterdir():
        file.write_text(SCORES)
    assert "validation_fraction" in ran("rank", "good", code=2).err


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_a_script_keeps_the_memory_that_it_frees():
    command = (sys.executable, "-c", TABLES["MEMORY"])
    kept, returned = (called(*command, **more).stdout for more in (program.KEEP_MEMORY, {}))
    assert 5 * int(kept) < int(returned)
