"""What CONTRIBUTING says about adding a method, a data set, an experiment, a claim and a figure, done to the letter.

In a copy of the project, under git, and with what a contributor then runs: the linter, the command line, `make quick`.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[1]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf8")

EVERY_METHOD = "methods training personal blocks mixed deployment"
"""Test files in which every method of the catalogue is tried."""


def block(heading: str, kind: str = "python", number: int = 0) -> str:
    """A block of code of a section."""
    section = CONTRIBUTING.split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL)[number]


def put(path: Path, after: str, text: str) -> None:
    """Write a text behind the first place where another stands."""
    before = path.read_text("utf8")
    assert after in before, f"{path.name} has no {after!r}"
    path.write_text(before.replace(after, after + text, 1), "utf8")


def git(tree: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *words], cwd=tree, check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, committed, with every recipe followed and not committed."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    tree = tmp_path_factory.mktemp("project")
    for name in git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0"):
        if name and (ROOT / name).is_file() and not name.startswith(("data/results/", "book/_static/")):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    for name in ("data/results", "book/_static"):
        (tree / name).symlink_to(ROOT / name)
    git(tree, "init", "--quiet", "--initial-branch=main")
    git(tree, "add", ".")
    git(tree, "commit", "--quiet", "-m", "as it was")
    add_method(tree)
    add_data_set(tree)
    add_experiment_and_claim(tree)
    add_figure(tree)
    python(tree, "-m", "ruff", "check", "--quiet", "--fix", "hetfl_core")  # which sorts imports and lists of names
    return tree


def add_method(tree: Path) -> None:
    methods, line = tree / "hetfl_core" / "methods", block("Adding a method", number=1)
    name, class_name = re.fullmatch(r"from hetfl_core\.methods\.(\w+) import (\w+)\n", line).groups()
    (methods / f"{name}.py").write_text(block("Adding a method"), "utf8")
    known = (methods / "__init__.py").read_text("utf8").splitlines(keepends=True)
    before = max(
        other for other in known if re.match(r"from hetfl_core\.methods\.\w+ import .*[^(]\n", other) and other < line
    )
    put(methods / "__init__.py", before, line)
    put(methods / "__init__.py", '    "FedAvg",\n', f'    "{class_name}",\n')


def add_data_set(tree: Path) -> None:
    data_sets = tree / "hetfl_core" / "datasets"
    (data_sets / "wine.py").write_text(block("Adding a data set"), "utf8")
    put(data_sets / "__init__.py", "    toy,\n", "    wine,\n")
    put(data_sets / "__init__.py", "Callable[..., Federation]] = {\n", block("Adding a data set", number=1))
    (tree / "data" / "cards" / "wine.laboratories.md").write_text(block("Adding a data set", "md"), "utf8")


def add_experiment_and_claim(tree: Path) -> None:
    papers = tree / "book" / "hetfl_book" / "papers"
    (papers / "own.py").write_text(block("Adding an experiment"), "utf8")
    experiments = papers.parent / "experiments.py"
    text = experiments.read_text("utf8")
    imported = re.search(r"^from hetfl_book\.papers import (.+)$", text, re.MULTILINE)[1]
    experiments.write_text(text.replace(imported, ", ".join(sorted([*imported.split(", "), "own"])), 1), "utf8")
    put(experiments, "EXPERIMENTS: dict[str, Experiment] = {\n", block("Adding an experiment", number=1))
    with (tree / "data" / "queue.toml").open("a", encoding="utf8") as file:
        file.write("\n" + block("Adding an experiment", "toml"))
    with (tree / "data" / "paper" / "claims.csv").open("a", encoding="utf8") as file:
        file.write(block("Adding a claim", "text"))


def add_figure(tree: Path) -> None:
    with (tree / "hetfl_core" / "plots.py").open("a", encoding="utf8") as file:
        file.write("\n\n" + block("Adding a figure"))
    put(tree / "hetfl_core" / "plots.py", '    "MARKERS",\n', '    "accuracies",\n')
    put(tree / "tests" / "test_fuzz_ledger.py", "FIGURES = {\n", block("Adding a figure", number=1))


def python(tree: Path, *arguments: str) -> str:
    """What Python prints in the copied tree."""
    environment = os.environ | {"PYTHONPATH": f"{tree}{os.pathsep}{tree / 'book'}"}
    done = subprocess.run([sys.executable, *arguments], cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


PROGRAM = r"""
from hetfl_core import plots
from hetfl_core.cli import app
from hetfl_core.datasets import wine

few = "run FedAvgM --federation toy.four_gaussians --rounds 1 --device cpu --set beta=0.5"
reproduce = "reproduce own/wine --scale paper --seeds 3 --jobs 1 --out ../records"
for command in ("list", few, reproduce, "ledger --claims --out ../records"):
    app(command.split(), standalone_mode=False)
    print(end="\f", flush=True)
print(sorted(wine.laboratories(seed=3).info), end="\f")
print(len(plots.accuracies({"a": 1.0, "b": 99.0}).patches))
"""
"""In one process, for it costs seconds to start."""


def test_the_recipes_make_a_method_a_data_set_an_experiment_a_claim_and_a_figure(tree: Path) -> None:
    shown, ran, _, judged, told, drawn = python(tree, "-c", PROGRAM).split("\f")
    assert "FedAvgM" in shown
    assert "accuracy" in ran
    assert re.search(r"wine\.laboratories +178 wines of three cultivars", shown)
    assert re.search(r"own/wine +Laboratories that measure other columns", shown)
    assert "HetFedRep is more accurate than training alone on the laboratories" in " ".join(judged.split())
    assert {"settings", "source", "simulated"} <= set(ast.literal_eval(told)), "as of every data set"
    assert drawn.split() == ["2"]


def test_the_recipes_are_in_the_style_of_the_house(tree: Path) -> None:
    """The linter agrees with all that is new or changed."""
    for command in (["check"], ["format", "--check"]):
        python(tree, "-m", "ruff", *command, "hetfl_core", "book/hetfl_book", "tests")


def test_what_was_added_passes_the_quick_tier(tree: Path) -> None:
    """All of it, with golden defaults, the list of what is public, and the house: nothing else is to be touched."""
    told = python(tree, "tests/quick.py", "-q", "-n", "2", "-p", "no:cacheprovider")
    for line in (
        "hetfl_core/methods/fedavgm.py: methods",
        "hetfl_core/datasets/wine.py: datasets",
        "data/cards/wine.laboratories.md: datasets registry",
        "hetfl_core/plots.py: eeg_plots moving plots transport_plots",
    ):
        assert line in told
    assert "always: architecture" in told
    assert "unknown" not in told
    assert " failed" not in told


def test_tests_of_every_method_try_the_new_one(tree: Path) -> None:
    """The stacked engine against the loop among them, without being told of it."""
    files = [f"tests/test_{name}.py" for name in f"{EVERY_METHOD} mutants".split()]
    known = "FedAvgM or every_module_of_the_core"
    tested = python(tree, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-rA", "-k", known, *files)
    for name in EVERY_METHOD.split():
        assert re.search(rf"PASSED tests/test_{name}\.py::\w+\[FedAvgM", tested), f"no test of {name} tried it"
    if os.name == "posix":  # where there are mutants
        assert "PASSED tests/test_mutants.py::test_every_module_of_the_core" in tested
