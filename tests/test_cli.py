"""The console script: one clear line and exit code 2 for every mistake, nothing more."""

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

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
from pflpipe.pipeline import cli
from pflpipe.study import check
from pflpipe.study.load import load_study

TABLES = tabled.table("test_cli")


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Return a function that runs a command, which ends with a code, and returns its output."""

    def ran(*words: str, code: int = 0):
        monkeypatch.setattr(sys, "argv", ["pflpipe", *words])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        assert (stopped.value.code or 0) == code
        return capsys.readouterr()

    return ran


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    malformed.write_good(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_good_project_is_accepted(project, ran):
    assert ran("validate").out == "good: 6 cells, fedavg, dp_fedavg, feddpa on digits: ok\n"


def test_a_library_that_is_not_installed_is_one_line_that_says_what_to_install(ran, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    error = ran("completion", "bash", code=2).err
    assert error.startswith("error: Python module 'shtab' is not installed; pip install ")
    assert error.count("\n") == 1


STORE = malformed.put("store", "s3://bucket/lab", "config.yaml")


def test_a_store_without_its_plugin_is_one_line_that_says_what_to_install(
    project, ran, monkeypatch
):
    STORE(project)
    monkeypatch.setitem(sys.modules, check.S3_PLUGIN, None)
    (line,) = lines(ran, "validate")
    assert line == (
        "config.yaml: store; got 's3://bucket/lab'; expected the Python package "
        "snakemake-storage-plugin-s3, which is not installed; pip install 'pflpipe[lab]'"
    )


@pytest.mark.pipeline
def test_snakemake_refuses_a_store_without_its_plugin_in_the_same_line(project):
    STORE(project)
    program = f"import sys; sys.modules[{check.S3_PLUGIN!r}] = None\n"
    program += "from snakemake.cli import main; main()"
    words = ("--dry-run", "--snakefile", str(malformed.ROOT / "Snakefile"))
    refused = warm.python(program, ("snakemake", *words), project, os.environ)
    assert refused.returncode == 2
    said, refusal = refused.stderr.splitlines()
    assert refused.stdout == ""
    assert said.startswith("Using workflow specific profile")
    assert refusal.startswith("error: config.yaml: store; got 's3://bucket/lab'; expected")


def test_runs_in_a_store_are_exported_by_snakemake_alone(project, ran):
    STORE(project)
    (line,) = lines(ran, "track", "good")
    assert line == (
        "config.yaml: store; got 's3://bucket/lab'; expected runs on this disk; "
        "snakemake --cores 1 --force results/tracking/good.done"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", malformed.CASES)
def test_a_malformed_config_gives_one_clear_line_and_exit_code_2(name, project, ran):
    case = malformed.CASES[name]
    case.damage(project)
    (line,) = lines(ran, "validate")
    for word in case.words:
        assert word in line
    parts = line.split(";")[0].split(": ")
    assert len(parts) == len(set(parts)), "no location is named twice"


def lines(ran, *words: str) -> list[str]:
    """Run a command that is refused; return the lines of its errors."""
    output = ran(*words, code=2)
    assert output.out == ""
    found = output.err.splitlines()
    assert all(line.startswith("error: ") for line in found)
    return [line.removeprefix("error: ") for line in found]


def test_all_mistakes_of_all_files_are_told_at_once(project, ran):
    malformed.write(project / "studies/other.yaml", malformed.STUDY)
    malformed.write(project / "studies/gone.yaml", malformed.STUDY | {"dataset": "gone"})
    for file, path, value in TABLES["DAMAGES"]:
        malformed.put(path, value, file)(project)
    found = lines(ran, "validate")
    assert [line.split(";")[0] for line in found] == TABLES["ERRORS"]
    assert "more like it" not in "".join(found), "the runs that follow are no further mistakes"


def test_all_mistakes_of_config_yaml_are_told_at_once(project, ran):
    malformed.write(
        project / "config.yaml", {"studies": [], "backend": "lop", "processes": 0, "dat_dir": "d"}
    )
    found = lines(ran, "validate")
    assert [line.split(";")[0] for line in found] == [
        "config.yaml: unknown key 'dat_dir'",
        "config.yaml: backend",
        "config.yaml: processes",
        "config.yaml: studies: needs at least one entry",
    ]


def test_what_is_wrong_with_the_data_of_several_runs_is_told_once_for_each_mistake(project, ran):
    malformed.put("axes", {"cases": [{"dataset": "minst"}, {"partition": {"min_size": 500}}]})(
        project
    )
    assert [line.split(";")[0] for line in lines(ran, "validate")] == [
        "studies/good.yaml: dataset 'minst' is not known",
        "studies/good.yaml: partition",
    ]


def test_messages_name_the_config_file_that_was_given(project, ran):
    (project / "config.yaml").rename(project / "mine.yaml")
    ran("validate", "--config", "mine.yaml")
    malformed.put("studies", ["god", "good"], "mine.yaml")(project)
    malformed.put("datasets", {"gone": "gone.npz"}, "mine.yaml")(project)
    malformed.put("dataset", "gone")(project)
    found = lines(ran, "validate", "--config", "mine.yaml")
    assert [line.split(": ")[0] for line in found] == ["mine.yaml", "mine.yaml"]


def test_data_that_no_study_asked_for_uses_block_nothing_and_are_named(project, ran):
    malformed.put("datasets", {"gone": "gone.npz"}, "config.yaml")(project)
    assert ran("validate", "good").out.count("\n") == 1
    _, warning = ran("validate").out.splitlines()
    assert warning.startswith("warning: config.yaml: datasets.gone: gone.npz does not exist")


def test_a_broken_study_is_named_at_the_end_of_the_list_of_studies(project, ran):
    (project / "studies/broken.yaml").write_text("title: [")
    printed = ran("studies").out
    assert "good: A good study\n" in printed
    assert "\nStudies with errors:\nstudies/broken.yaml: line 2, column 1: not" in printed


def test_the_studies_of_the_config_do_not_matter_to_a_study_asked_for(project, ran):
    malformed.put("studies", ["god"], "config.yaml")(project)
    assert ran("validate", "good").out.startswith("good: 6 cells, ")


@pytest.mark.parametrize(("key", "known", "answer"), TABLES["GUESSES"])
def test_a_guess_is_near_or_not_made(key, known, answer):
    assert errors.nearest(key, known) == answer


def test_a_data_set_of_ones_own_is_guessed(project, ran):
    (project / "mine.npz").rename(project / "cancer.npz")
    malformed.put("datasets", {"cancer": "cancer.npz"}, "config.yaml")(project)
    malformed.put("dataset", "cancr")(project)
    (line,) = lines(ran, "validate")
    assert "did you mean 'cancer'?" in line


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unknown key", "lengths"])
def test_the_installed_console_script_says_the_same(name, project):
    malformed.CASES[name].damage(project)
    script = Path(sys.executable).with_name("pflpipe")
    result = called(script, "validate", folder=project, code=2)
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert all(word in result.stderr for word in malformed.CASES[name].words)


def test_a_broken_study_that_nobody_asks_for_is_not_looked_at(project, ran):
    (project / "studies/broken.yaml").write_text("title: [")
    assert ran("validate").out.startswith("good: 6 cells, ")
    (line,) = lines(ran, "validate", "broken")
    assert line.startswith("studies/broken.yaml: line 2, column 1: not valid YAML")


def test_methods_lists_defaults_and_the_claim_and_departures_of_each_profile(ran):
    from pflpipe.methods import registry
    from pflpipe.methods.registry import NAMES

    printed = ran("methods").out
    blocks = dict(re.findall(r"^(\w+): (.*?)(?=^\w|\Z)", printed, flags=re.M | re.S))
    assert tuple(blocks) == NAMES
    for name, block in blocks.items():
        found = dict(re.findall(r"^    profile ([\w, ]+): (.*)$", block, flags=re.M))
        about, hyperparameters = registry.info(name).about, registry.info(name).hyperparameters
        for key, parameter in hyperparameters.items():
            assert f"    {key} = {parameter.default!r}" in block
        official = [("paper, official code", ("paper", True))] if about.official_departures else []
        profiles = dict([("strict", ("strict", False)), ("paper", ("paper", False)), *official])
        assert found.keys() == profiles.keys()
        for profile, line in found.items():
            departures = registry.departures(name, *profiles[profile])
            claim = "none" if not about.private else "nominal" if departures else "certified"
            assert re.match(r"claim (\w+)", line)[1] == claim
            assert set(line.partition("; departures ")[2].split(", ")) - {""} == set(departures)


def test_the_version_is_told(ran):
    assert ran("--version").out == f"pflpipe {pflpipe.__version__}\n"


def test_studies_are_listed_by_purpose_the_quickest_first(project, ran):
    malformed.write(
        project / "studies/quick.yaml", malformed.STUDY | {"title": "Quick", "seeds": [0]}
    )
    malformed.write(project / "studies/feddpa_table9.yaml", malformed.STUDY)
    malformed.put("search", {"seeds": [7], "validation_fraction": 0.2}, "studies/good.yaml")(
        project
    )
    malformed.put("methods.1.search", {"training.lr": [0.1, 0.3]}, "studies/good.yaml")(project)
    malformed.write(project / "studies/slow.yaml", malformed.STUDY | {"seeds": [*range(9)]})
    printed = ran("studies").out
    heads = re.findall(r"^(\S.*):$|^(\w+): ", printed, flags=re.M)
    assert ["".join(head) for head in heads] == TABLES["HEADINGS"]
    assert "quick: Quick\n    3 runs, about 0 s; 3 cells" in printed
    assert "    8 runs, about 0 s; 6 cells after a search of 2" in printed
    assert "estimates" in printed.splitlines()[-1]


def test_a_study_that_was_begun_is_accepted_as_it_is(tmp_path, monkeypatch, ran):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert ran("init", "mine").out.splitlines() == [
        "studies/mine.yaml: written",
        "config.yaml: written",
        "next: pflpipe validate mine",
        "then: pflpipe run mine",
    ]
    assert ran("validate").out.startswith("mine: 12 cells, ")


def test_init_prints_commands_that_can_be_typed_where_the_environment_is_not_on_path(
    tmp_path, monkeypatch, ran
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    for programs in (Path(sys.executable).parent, tmp_path / ".venv/bin"):
        monkeypatch.setattr(sys, "executable", str(programs / "python"))
        *_, check, start = ran("init", f"mine{len(programs.parts)}").out.splitlines()
        shown = ".venv/bin" if tmp_path in programs.parents else programs
        assert check.startswith(f"next: {shown}/pflpipe validate ")
        assert start.startswith(f"then: {shown}/pflpipe run ")


def test_what_a_begun_study_suggests_in_its_comments_is_accepted_too(tmp_path, monkeypatch, ran):
    monkeypatch.chdir(tmp_path)
    ran("init", "mine")
    file = tmp_path / "studies/mine.yaml"
    suggested = r"^# (?=axes:|  privacy\.|  - name: |    search:|search:)"
    text, number = re.subn(suggested, "", file.read_text(), flags=re.M)
    assert number == 5
    file.write_text(text)
    assert "24 cells after a search of 12," in ran("validate").out


ROWS = {"file": "rows.csv", "user": "person", "label": "y", "classes": 2}
"""A block of config.yaml that declares users."""
WAYS_ON = re.escape("partition: {kind: natural}") + ".*" + re.escape("kind: iid, users: ignored, ")


@pytest.fixture
def people(tmp_path, monkeypatch):
    """A folder with a table of ten people, its block in config.yaml and no study."""
    monkeypatch.chdir(tmp_path)
    lines = [f"p{row % 10},{row % 7},{row % 2}" for row in range(200)]
    (tmp_path / "rows.csv").write_text("\n".join(["person,x,y", *lines]))
    config = {"studies": ["mine"], "datasets": {"digits_too": "d.npz", "patients": ROWS}}
    malformed.write(tmp_path / "config.yaml", config)
    return tmp_path


def test_a_begun_study_has_users_for_clients_where_the_block_declares_them(people, ran):
    ran("init", "mine")
    document = yaml.safe_load((people / "studies/mine.yaml").read_text())
    assert (document["dataset"], document["partition"]) == ("patients", {"kind": "natural"})
    assert "on patients: ok" in ran("validate").out
    numbers = {"file": "rows.csv", "user": "person", "target": "x"}
    malformed.write(people / "config.yaml", {"studies": ["third"], "datasets": {"mine": numbers}})
    ran("init", "third")
    assert "on mine: ok" in ran("validate").out
    config = {"studies": ["mine"], "datasets": {"rows": {**ROWS, "user": "x"}, "patients": ROWS}}
    del config["datasets"]["rows"]["user"]
    malformed.write(people / "config.yaml", config)
    ran("init", "second")
    assert "dataset: patients\n" in (people / "studies/second.yaml").read_text()


@pytest.mark.parametrize("is_made", [False, True], ids=["before the data are made", "after"])
def test_rows_of_declared_users_are_not_dealt_without_a_word(is_made, people, ran):
    (people / "studies").mkdir()
    wish = {"kind": "iid", "clients": 5}
    study = malformed.STUDY | {"dataset": "patients", "partition": wish}
    malformed.write(people / "studies/mine.yaml", study)
    if is_made:
        sources.prepare("patients", ROWS, people, people / "data/patients.npz")
    for command in ("validate", *(["plan mine"] if is_made else [])):
        error = ran(*command.split(), code=2).err
        assert error.count("\n") == 1
        assert re.search(WAYS_ON, error)
    for partition in (wish | {"users": "ignored", "max_clients_per_user": 2}, {"kind": "natural"}):
        malformed.write(people / "studies/mine.yaml", study | {"partition": partition})
        small = {"epsilon": 8, "delta": 0.01, "clip_norm": 0.5}
        malformed.put("privacy", small, "studies/mine.yaml")(people)
        assert ": ok" in ran("validate").out


@pytest.mark.parametrize(("changes", "loss", "words"), TABLES["LABELS"])
def test_a_loss_that_does_not_fit_the_labels_of_a_block_is_refused_before_a_job(
    changes, loss, words, people, ran
):
    block = {"file": "rows.csv", "user": "person"} | changes
    config = {"studies": ["mine"], "datasets": {"patients": block}}
    malformed.write(people / "config.yaml", config)
    (people / "studies").mkdir()
    study = malformed.STUDY | {"dataset": "patients", "partition": {"kind": "natural"}}
    study["training"] = study["training"] | ({"loss": loss} if loss else {})
    malformed.write(people / "studies/mine.yaml", study)
    error = ran("validate", code=2).err
    assert error.count("\n") == 1
    assert re.search(f"training.loss .*{words}", error)


def test_missing_values_that_follow_from_a_persons_rows_are_not_dealt(people, ran):
    block = ROWS | {"missing": {"x": "median"}, "ranges": {"x": [0, 6]}}
    config = {"studies": ["mine"], "datasets": {"patients": block}}
    malformed.write(people / "config.yaml", config)
    (people / "studies").mkdir()
    dealt = {"kind": "iid", "clients": 5, "users": "ignored"}
    study = malformed.STUDY | {"dataset": "patients", "partition": dealt}
    malformed.write(people / "studies/mine.yaml", study)
    error = ran("validate", code=2).err
    words = (
        r"partition.kind iid: missing; got {'x': 'median'}; .*value or indicator in datasets.pat"
    )
    assert re.search(words, error)
    malformed.put("partition", {"kind": "natural"}, "studies/mine.yaml")(people)
    assert ": ok" in ran("validate").out


@pytest.mark.parametrize("dataset", ["wisdm", "femnist", "spi"])
def test_nor_are_those_of_the_people_in_a_named_data_set(dataset, project, ran):
    malformed.put("dataset", dataset)(project)
    assert re.search(WAYS_ON.replace("iid", "dirichlet"), ran("validate", code=2).err)


def test_users_that_are_not_there_cannot_be_ignored(project, ran):
    malformed.put("partition.users", "ignored")(project)
    error = ran("validate", code=2).err
    assert "partition.users; got 'ignored'; expected a data set with user ids" in error
    malformed.put("partition.users", "forgotten")(project)
    assert (
        "partition.users; got 'forgotten'; expected one of ignored" in ran("validate", code=2).err
    )


def test_init_leaves_files_that_are_there_alone(project, ran):
    before = (project / "studies/good.yaml").read_text(), (project / "config.yaml").read_text()
    assert "exists already" in ran("init", "good", code=2).err
    assert ran("init", "other").out.startswith("studies/other.yaml: written\nnext")
    assert ((project / "studies/good.yaml").read_text(), (project / "config.yaml").read_text()) == (
        before
    )


@pytest.mark.parametrize("name", ["../x", "all", "a-b", ""])
def test_init_refuses_a_name_that_no_study_can_have(name, project, ran):
    assert "letters, digits and _" in ran("init", name, code=2).err


@pytest.mark.parametrize("shell", cli.SHELLS)
def test_every_shell_completes_commands_and_names_of_studies(shell, ran):
    printed = ran("completion", shell).out
    for word in ("validate", "compare", "ls studies"):
        assert word in printed


@pytest.mark.parametrize(("words", "completed"), TABLES["COMPLETED"])
def test_bash_completes_studies_methods_and_data_sets(words, completed, project, ran):
    (project / "rows.csv").write_text("who,y\n")
    (project / "complete.sh").write_text(ran("completion", "bash").out)
    typed = f"COMP_WORDS=(pflpipe {words}); COMP_CWORD=2"
    ask = f"{typed}; _shtab_pflpipe; echo ${{COMPREPLY[@]}}"
    assert called("bash", "-c", f". ./complete.sh; {ask}").stdout == f"{completed}\n"


@pytest.mark.parametrize(("given", "meant"), [("validte", "validate"), ("runn", "run")])
def test_an_unknown_command_is_one_line_that_says_which_was_meant(given, meant, ran):
    error = ran(given, code=2).err
    assert error == f"error: unknown command {given!r}; did you mean {meant!r}?\n"


@pytest.mark.parametrize("command", sorted(cli._commands(cli._parser())))
def test_a_mistyped_option_of_any_command_is_one_line_that_says_which_was_meant(command, ran):
    needed = {"compare": "a b", "completion": "bash", "flower": "a b", "audit": "a --clients 3"}
    needed |= dict.fromkeys(("quickstart", "methods", "studies", "status"), "")
    error = ran(command, *needed.get(command, "a").split(), "--hlep", code=2).err
    assert error.startswith(f"error: pflpipe {command}: unknown option '--hlep'; did you mean")
    assert error.endswith("'--help'?\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run f.csv --usr=patient", "unknown option '--usr'; did you mean '--user'?"),
        ("run f.csv --minutes x", "argument --minutes: invalid float value: 'x'; pflpipe run --he"),
        ("plan", "the following arguments are required: study; pflpipe plan --help shows all"),
        ("plan a b", "unknown argument 'b'; known: "),
    ],
)
def test_a_mistake_in_the_words_of_a_command_is_one_line(words, said, ran):
    error = ran(*words.split(), code=2).err
    assert error.startswith(f"error: pflpipe {words.split()[0]}: {said}")
    assert error.count("\n") == 1


def test_help_is_a_map_of_all_commands_with_examples_that_can_be_typed(ran):
    printed, parser = ran("--help").out, cli._parser()
    listed = re.findall(r"^  ([a-z]+)  +\S", printed, flags=re.M)
    assert sorted(listed) == sorted(cli._commands(parser))
    examples = re.findall(r"^    pflpipe (.*)$", printed, flags=re.M)
    assert len(examples) == len(cli.GROUPS)
    for example in examples:
        parser.parse_args(example.split())


def test_a_bug_keeps_its_traceback():
    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program.run_script(broken)


@pytest.mark.parametrize(
    ("error", "code"), [(None, 0), (PflpipeError("no"), 2), (KeyboardInterrupt(), 130)]
)
def test_run_script_maps_endings_to_exit_codes(error, code):
    def script() -> None:
        if error is not None:
            raise error

    with pytest.raises(SystemExit) as stopped:
        program.run_script(script)
    assert stopped.value.code == code


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["--tables", "a", "b", "--out", "c"], ([Path("a"), Path("b")], Path("c"), 1, None)),
        (["--tables", "--out=c", "--some-count=2", "--source=d"], ([], Path("c"), 2, Path("d"))),
        (["--out", "c"], None),
        (["--tables", "a", "--out", "c", "--some-count", "many"], None),
    ],
)
def test_a_step_takes_the_words_that_its_signature_names(words, given, monkeypatch):
    taken = []

    def step(tables: list[Path], out: Path, some_count: int = 1, source: Path | None = None):
        taken.append((tables, out, some_count, source))

    monkeypatch.setattr("sys.argv", ["step.py", *words])
    with pytest.raises(SystemExit) as stopped:
        program.run_step(step)
    assert (taken, stopped.value.code) == (([given], 0) if given else ([], 2))


def test_starting_the_command_line_imports_nothing_heavy():
    names = ["torch", "numpy", "yaml", "jsonschema", "mlflow", "opacus", "pandas", "matplotlib"]
    check = "import sys, pflpipe.pipeline.cli\n"
    check += f"print([name for name in {names!r} if name in sys.modules])"
    assert called(sys.executable, "-c", check).stdout == "[]\n"


@pytest.mark.pipeline
def test_validation_imports_neither_accountants_nor_trackers(project):
    check = "from pflpipe.study import check, config; check.validate(config.load())"
    heavy = {"mlflow", "opacus", "dp_accounting", "pandas", "sklearn", "scipy"}
    loaded = warm.modules_of(check)
    assert "pflpipe.study.check" in loaded
    assert loaded & heavy == set()


SCORES = (
    "cell,client,train_size,personal_own,personal_validation,personal_common,"
    "global_own,global_validation,global_common\n"
)


@pytest.fixture
def scored(project):
    """A search over two learning rates in which the second is better on validation and worse on
    test data."""

    malformed.put("axes", {"training.lr": [0.1, 0.5], "privacy.epsilon": [2, 8]})(project)
    study = load_study("good")
    for method in study.methods:
        lines = []
        for cell in study.cells:
            if cell.method == method:
                good = 60 + 20 * (cell.training.lr == 0.5) + cell.seed
                lines += [
                    f"{cell.id},0,9,{100 - good},{good},,,,\n",
                    f"{cell.id},1,9,{100 - good},,,,,\n",
                ]
        target = project / f"results/scores/good/{method}.csv"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(SCORES + "".join(lines))
    return project


def test_rank_orders_sets_by_validation_and_ignores_test_data(scored, ran):
    lines = ran("rank", "good").out.splitlines()
    start = lines.index("dp_fedavg")
    assert lines[start + 1] == "   80.50 (ε = 2: 80.50, ε = 8: 80.50)  training.lr=0.5"
    assert lines[start + 2] == "   60.50 (ε = 2: 60.50, ε = 8: 60.50)  training.lr=0.1"
    assert lines[lines.index("fedavg") + 1] == "   80.50 ± 0.71  training.lr=0.5"


def test_rank_says_that_the_choice_costs_privacy(scored, ran):
    assert "no epsilon accounts for" in ran("rank", "good").out.splitlines()[-1]


def test_rank_without_scores_says_how_to_make_them(project, ran):
    assert "results/tables/good.csv" in ran("rank", "good", code=2).err


def test_rank_without_validation_examples_says_so(scored, ran):
    for file in (scored / "results/scores/good").iterdir():
        file.write_text(SCORES)
    assert "validation_fraction" in ran("rank", "good", code=2).err


MEMORY = """
import resource
import numpy as np

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones(2**18) for _ in range(16)]
    del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_a_script_keeps_the_memory_that_it_frees():
    kept, returned = (
        int(subprocess.check_output([sys.executable, "-c", MEMORY], env={**os.environ, **more}))
        for more in (program.KEEP_MEMORY, {})
    )
    assert 5 * kept < returned
