"""The three tiers: no test is in none of them, and `make quick` finds the tests of what has changed."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import conftest
import pytest
import yaml

quick = pytest.importorskip("quick", reason="needs os.fork", exc_type=ImportError)

ROOT = Path(__file__).resolve().parents[1]
MAKEFILE = (ROOT / "Makefile").read_text("utf8")


# --- every test is in a tier ----------------------------------------------------------------------------------------


def recipe(target: str) -> str:
    """The commands of a target of the Makefile."""
    [found] = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    return found


def test_each_test_is_in_the_daily_or_in_the_nightly_tier() -> None:
    """One expression and its opposite, over all files: nothing else is chosen or left out."""
    daily, nightly = recipe("test"), recipe("nightly")
    assert re.findall(r'-m (".*?"|\S+)', daily) == ['"not nightly"']
    assert re.findall(r'-m (".*?"|\S+)', nightly) == ["nightly"]
    [shared] = re.findall(r"^TESTS := (.*)$", MAKEFILE, re.MULTILINE)
    for words in (daily, nightly, shared):
        assert not re.search(r" -k |--ignore|--deselect|tests/|@", words)
    assert re.findall(r"^make (\w+)$", (ROOT / ".ci" / "run").read_text("utf8"), re.MULTILINE) == [
        "book", "test", "nightly"
    ]  # fmt: skip


def test_every_test_stands_in_a_file_that_pytest_looks_into() -> None:
    """In the folder itself, in a file whose name begins with ``test_``."""
    for path, text in quick.sources().items():
        defined = [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        assert quick.is_test(path) or not [name for name in defined if name.startswith(("test_", "Test"))], path


@pytest.mark.parametrize("mark", ["browser", "realdata", "nightly", "cuda", None])
def test_what_needs_a_browser_or_real_files_is_nightly(mark: str | None) -> None:
    """Before pytest chooses by marks."""
    given: list[str] = [mark] if mark else []
    item = SimpleNamespace(path=Path("test_a.py"), add_marker=given.append)
    item.get_closest_marker = lambda name: name if name in given else None
    conftest.pytest_collection_modifyitems([item])
    assert ("nightly" in given) == (mark in ("browser", "realdata", "nightly"))
    assert conftest.pytest_collection_modifyitems.pytest_impl["tryfirst"]


# --- what has changed -----------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A branch with a commit of its own, a file that is not committed, and one that git does not know."""

    def git(*words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "--initial-branch=main")
    for name in ("kept", "edited", "removed"):
        (tmp_path / name).write_text(name)
    (tmp_path / ".gitignore").write_text("ignored\n")
    git("add", ".")
    git("commit", "-m", "one")
    git("switch", "-c", "work")
    (tmp_path / "committed").write_text("1")
    git("add", ".")
    git("commit", "-m", "two")
    (tmp_path / "removed").unlink()
    (tmp_path / "edited").write_text("2")
    for name in ("a new one", "ignored"):
        (tmp_path / name).write_text("3")
    return tmp_path


def test_commits_edits_and_new_files_are_changes(repository: Path) -> None:
    assert quick.changed(quick.base(repository), repository) == ["a new one", "committed", "edited", "removed"]
    assert quick.changed("HEAD", repository) == ["a new one", "edited", "removed"]


def test_a_base_that_does_not_exist_is_said(repository: Path) -> None:
    with pytest.raises(SystemExit, match="nowhere"):
        quick.changed("nowhere", repository)


# --- which tests it asks for ----------------------------------------------------------------------------------------


def tracked() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    paths = quick.git("ls-files", "-z").split("\0")
    return [path for path in paths if path and (ROOT / path).exists()]


def test_every_file_of_the_project_has_tests() -> None:
    """One without is told in `quick.ELSEWHERE` what reads it, or has a test."""
    assert [path for path in tracked() if not quick.tests_of(path)] == []


@pytest.mark.parametrize("table", [quick.ELSEWHERE, quick.mutants.TESTS, quick.mutants.WORDS])
def test_the_tests_that_a_table_names_are_there(table: dict[str, str]) -> None:
    names = {name for value in table.values() for name in value.split()}
    assert {name for name in names if not (ROOT / "tests" / f"test_{name}.py").exists()} == set()


def test_each_pattern_stands_for_something() -> None:
    """Before those that are wider, or it would never be asked."""
    first = {next((p for p in quick.ELSEWHERE if quick.fnmatchcase(path, p)), None) for path in tracked()}
    assert set(quick.ELSEWHERE) - first == set()


@pytest.mark.parametrize(
    ("path", "some", "none"),
    [
        ("hetfl_core/tuning.py", "tuning", "methods"),
        ("hetfl_core/methods/flic.py", "flic methods", "book"),
        ("hetfl_core/methods/__init__.py", "methods", "book"),
        ("hetfl_core/methods/not_yet_there.py", "methods", "book"),
        ("hetfl_core/cli.py", "cli", "book"),
        ("book/hetfl_book/headtohead/guide.py", "guide", "flic"),
        ("book/hetfl_book/headtohead/portraits.py", "guide", "flic"),
        ("book/hetfl_book/papers/flic.py", "flic_published experiments", "flic"),
        ("tests/test_rng.py", "rng", "methods"),
        ("tests/fuzzing.py", "fuzz fuzz_ledger", "methods"),
        ("tests/facts/flic.py", "facts", "methods"),
        ("tests/golden.json", "golden", "methods"),
        ("data/results/flic/bci.jsonl", "facts storage results", "methods"),
        ("data/results/hyfem/quadrants.jsonl", "facts hyfem_settings", "fedcma_settings"),
        ("data/registry.toml", "registry", "methods"),
        ("book/flic-results.ipynb", "book facts", "methods"),
        ("book/tasks.md", "tasks book", "methods"),
        ("Makefile", "repository quick", "methods"),
    ],
)
def test_a_change_asks_for_the_tests_of_what_changed(path: str, some: str, none: str) -> None:
    found = quick.tests_of(path)
    assert quick.named(some.split()) <= found
    assert not quick.named(none.split()) & found


def test_what_is_unknown_is_said_and_has_the_tests_of_the_frame() -> None:
    wanted, lines = quick.plan(["elsewhere/golden.json"])
    assert "elsewhere/golden.json: unknown" in lines[0]
    assert {"tests/test_repository.py", "tests/test_golden.py"} <= set(wanted), "one of them names such a file"


def test_some_tests_run_always_and_nightly_ones_never() -> None:
    assert quick.plan([]) == ([*quick.ALWAYS], [])
    wanted, lines = quick.plan(["tests/test_flower.py", "tests/test_facts.py"])
    assert wanted == ["tests/test_facts.py", *quick.ALWAYS], (
        "of a file of both tiers pytest leaves out the nightly tests"
    )
    assert lines[-1] == "not run here: make nightly PYTEST='tests/test_facts.py tests/test_flower.py'"


# --- what a public repository runs ----------------------------------------------------------------------------------


def test_the_public_workflows_run_both_tiers_and_the_long_one_where_its_tests_change() -> None:
    flows = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
    text = {name: yaml.safe_dump(flow) for name, flow in flows.items()}
    assert "make test" in text["tests"]
    assert "make nightly" in text["book"]
    events = flows["book"][True]  # YAML takes the word "on" for a truth value
    assert "paths" not in (events["push"] or {}), "all of it runs on main"
    watched = events["pull_request"]["paths"]
    night = [path for path in quick.sources() if quick.is_test(path) and quick.whole_file_is_nightly(path)]
    unseen = [path for path in [*night, "Makefile", "hetfl_core/deployment/site.py", "book/flic.ipynb"] if not any(
        quick.fnmatchcase(path, pattern.replace("**", "*")) for pattern in watched
    )]  # fmt: skip
    assert unseen == []
