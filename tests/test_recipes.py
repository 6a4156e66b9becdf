"""What CONTRIBUTING says about adding a data set, an experiment, a claim and a figure, done in a copy of the tree."""

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


def block(heading: str, kind: str = "python", number: int = 0) -> str:
    """A block of code of a section."""
    section = CONTRIBUTING.split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL)[number]


def put(path: Path, after: str, text: str) -> None:
    """Write a text behind the first place where another stands."""
    before = path.read_text("utf8")
    assert after in before, f"{path.name} has no {after!r}"
    path.write_text(before.replace(after, after + text, 1), "utf8")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of both packages and of the papers' numbers, with every recipe followed to the letter."""
    root = tmp_path_factory.mktemp("tree")
    ignored = shutil.ignore_patterns("results")
    for name in ("hetfl_core", "book/hetfl_book", "data"):
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", root)
    data_sets, papers = root / "hetfl_core" / "datasets", root / "book" / "hetfl_book" / "papers" / "flic.py"
    (data_sets / "wine.py").write_text(block("Adding a data set"), "utf8")
    put(data_sets / "__init__.py", "toy,", " wine,") if "toy," in (data_sets / "__init__.py").read_text(
        "utf8"
    ) else put(data_sets / "__init__.py", "registry, toy", ", wine")
    put(data_sets / "__init__.py", "Callable[..., Federation]] = {\n", block("Adding a data set", number=1))
    with papers.open("a", encoding="utf8") as file:
        file.write("\n\nfrom hetfl_core.datasets import wine  # noqa: E402\n\n")
        file.write(f"EXPERIMENTS |= {{\n{block('Adding an experiment')}}}\n")
    with (root / "data" / "paper" / "claims.csv").open("a", encoding="utf8") as file:
        file.write(block("Adding a claim", "text"))
    with (root / "hetfl_core" / "plots.py").open("a", encoding="utf8") as file:
        file.write("\n\n" + block("Adding a figure"))
    return root


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

reproduce = "reproduce own/wine --scale paper --seeds 3 --jobs 1 --out records"
for command in ("list", reproduce, "ledger --claims --out records"):
    app(command.split(), standalone_mode=False)
    print(end="\f", flush=True)
print(sorted(wine.laboratories(seed=3).info), end="\f")
print(len(plots.accuracies({"a": 1.0, "b": 99.0}).patches))
"""
"""In one process, for it costs seconds to start."""


def test_the_recipes_make_a_data_set_an_experiment_a_claim_and_a_figure(tree: Path) -> None:
    shown, _, judged, told, drawn = python(tree, "-c", PROGRAM).split("\f")
    assert re.search(r"wine\.laboratories +178 wines of three cultivars", shown)
    assert re.search(r"own/wine +Laboratories that measure other columns", shown)
    assert "HetFedRep is more accurate than training alone on the laboratories" in " ".join(judged.split())
    assert {"settings", "source", "simulated"} <= set(ast.literal_eval(told)), "as of every data set"
    assert drawn.split() == ["2"]


def test_the_recipes_are_in_the_style_of_the_house(tree: Path) -> None:
    """The linter agrees with the new file, and with the figure behind the others."""
    places = ["hetfl_core/datasets/wine.py", "hetfl_core/plots.py"]
    for command in (["check"], ["format", "--check"]):
        python(tree, "-m", "ruff", *command, *places)
