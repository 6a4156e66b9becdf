"""Which test files a change asks for, and those run: ``make quick``.

What has changed since a base is asked of git: commits, what is not committed, and files that are new. A module of the
two packages has the tests that ``mutants.TESTS`` and ``mutants.WORDS`` give it, else those of its own name, else those
that import it; what is no module stands in `ELSEWHERE`. A path that nothing here knows is said to be unknown, and has
the tests that name it, and those of the frame. `ALWAYS` run in any case. Tests of the nightly tier are named, not run.

``make quick BASE=v0.3`` compares with another commit, ``make quick PYTEST='-x --pdb -n 0'`` passes options on.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import mutants

ROOT = Path(__file__).resolve().parents[1]

ALWAYS = (
    "tests/test_architecture.py",
    "tests/test_public.py",
    "tests/test_golden.py::test_what_users_are_promised_is_as_it_was[defaults]",
)
"""The house, what is public, and what is promised: quick, and what a change breaks without being looked at."""

FRAME = "repository"
"""Tests of the frame, for what nothing else is known to read."""

PACKAGES = {"hetfl_core": "hetfl_core", "book/hetfl_book": "hetfl_book"}

RECORDS = "book cards collecting experiments facts guide report_components results statistics storage waiting"
"""Tests that read records of any kind."""

ELSEWHERE = {
    "hetfl_core/__init__.py": "cli public",
    "hetfl_core/__main__.py": "cli",
    "hetfl_core/datasets/recordings.toml": "eeg eeg_own",
    "hetfl_core/datasets/*.toml": "registry eeg_people",
    "hetfl_core/datasets/*.json": "clinical heart",
    "hetfl_core/deployment/template/*": "deployment flower gate",
    "hetfl_core/reporting/page.html": "reporting",
    "hetfl_core/plots.mplstyle": "plots",
    "hetfl_core/py.typed": "repository",
    "book/hetfl_book/__init__.py": "public",
    "book/hetfl_book/datasets/__init__.py": "datasets registry",
    "book/hetfl_book/figures/eeg.py": "eeg_plots",
    "book/hetfl_book/ledger/tables.py": "ledger results",
    "book/hetfl_book/papers/fedcma.py": "experiments fedcma_settings",
    "book/hetfl_book/papers/fedcr*.py": "experiments fedcr_settings",
    "book/hetfl_book/papers/hospitals.py": "experiments hospitals",
    "book/hetfl_book/papers/hyfem.py": "experiments hyfem_settings",
    "book/hetfl_book/papers/*.py": "experiments flic_published jobs",
    "book/hetfl_book/theory/fedcma.py": "theory_fedcma",
    "book/hetfl_book/theory/hyfem.py": "theory_hyfem",
    "data/results/fedcma/*": f"{RECORDS} fedcma_settings",
    "data/results/fedcr/*": f"{RECORDS} fedcr_settings",
    "data/results/headtohead/*": f"{RECORDS} headtohead",
    "data/results/heart/*": f"{RECORDS} hospitals",
    "data/results/hyfem/*": f"{RECORDS} hyfem_settings",
    "data/results/*": RECORDS,
    "data/paper/*": "comparison facts ledger statistics",
    "data/grids/*": "anchors_drawn steered",
    "data/cards/*": "datasets registry",
    "data/registry.toml": "datasets registry",
    "data/queue.toml": "experiments waiting",
    "data/advice.csv": "advice guide",
    "data/headtohead*.csv": "cards guide headtohead tried",
    "data/transcripts/*": "book deployment",
    "book/method-cards*.md": "book cards public",
    "book/headtohead*": "book facts guide headtohead public",
    "book/tasks.md": "book public tasks",
    "book/tour.ipynb": "book facts public tour",
    "book/ledger*.ipynb": "book facts public results",
    "book/_ext/*": "book building cards notebook public",
    "book/assignments/*": "assignments book grading public",
    "book/_static/*": "book browser",
    "book/_toc.yml": "book facts part_one",
    "book/*.ipynb": "book facts part_one public waiting",
    "book/*": "book public",
    "tests/facts/cards.py": "cards",
    "tests/facts/tour.py": "tour",
    "tests/facts/*": "facts",
    "tests/loopback.py": "deployment secret",
    "tests/golden.*": "golden",
    "tests/public.txt": "public",
    "tests/published/*": "flic_published published",
    "tests/wrong_answers/*": "assignments grading",
    "tests/mutants*": "mutants quick",
    "tests/core.txt": "repository",
    "tests/conftest.py": "repository quick",
    "tests/quick.py": "quick",
    "CONTRIBUTING.md": "architecture contributing recipes repository",
    "contributing/*": "contributing repository",
    "README.md": "book repository",
    "Makefile": "quick repository",
    ".ci/*": "quick repository",
    ".github/*": "quick repository",
    "pyproject.toml": "quick repository",
    "*": "repository",
}
"""Tests of what is no module, and of some modules, by the first pattern that a path has.

The last pattern is for files at the top alone. A module has a pattern of its own package only.
"""


# --- what has changed -----------------------------------------------------------------------------------------------


def git(*words: str, root: Path = ROOT) -> str:
    """What git prints; an error of git's is the program's."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def base(root: Path = ROOT) -> str:
    """The commit at which the work began: where this branch left `main`, of the remote's or else of one's own."""
    known = git("for-each-ref", "--format=%(refname:short)", "refs/remotes/origin/main", "refs/heads/main", root=root)
    mains = sorted(known.split(), key=lambda name: not name.startswith("origin/"))
    return git("merge-base", "HEAD", mains[0], root=root).strip() if mains else "HEAD"


def changed(since: str, root: Path = ROOT) -> list[str]:
    """Paths that differ from a commit, committed or not, and files that git does not know yet."""
    differ = git("diff", "--name-only", "--no-renames", "-z", since, root=root)
    new = git("ls-files", "--others", "--exclude-standard", "-z", root=root)
    return sorted({*differ.split("\0"), *new.split("\0")} - {""})


# --- which tests it asks for ----------------------------------------------------------------------------------------


@cache
def sources() -> Mapping[str, str]:
    """The programs of the folder of tests, by path."""
    return {path.relative_to(ROOT).as_posix(): path.read_text("utf8") for path in (ROOT / "tests").rglob("*.py")}


@cache
def imported(path: str) -> frozenset[str]:
    """Dotted names that a program imports: modules, and members of modules, which may be modules."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(sources()[path])):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def is_test(path: str) -> bool:
    return bool(re.fullmatch(r"tests/test_\w+\.py", path))


def importers(module: str) -> set[str]:
    """Test files that import a module, also by way of other programs of the folder of tests."""
    files, asked = {path for path in sources() if module in imported(path)}, set()
    while helpers := {path for path in files if not is_test(path)} - asked:
        asked |= helpers
        names = {path.removeprefix("tests/").removesuffix(".py").replace("/", ".") for path in helpers}
        names |= {name.removesuffix(".__init__") for name in names}
        files |= {path for path in sources() if imported(path) & names}
    return {path for path in files if is_test(path)}


def named(names: Iterable[str]) -> set[str]:
    """Files of tests by their short names, where they are."""
    return {path for name in names if (path := f"tests/test_{name}.py") in sources()}


def of_module(package: str, module: str) -> set[str]:
    """Tests of a module: by the map, by its name, by who imports it, by its room's name."""
    if mapped := named(f"{mutants.TESTS.get(module, '')} {mutants.WORDS.get(module, '')}".split()):
        return mapped
    room = module.removesuffix("/__init__")
    dotted = f"{package}.{room.replace('/', '.')}"
    return named([room.rpartition("/")[2]]) or importers(dotted) or named(room.split("/")[:1])


def tests_of(path: str) -> set[str] | None:
    """Test files that a changed path asks for; None where nothing is known of it."""
    if is_test(path):
        return {path} & set(sources())
    folder = next((f"{name}/" for name in PACKAGES if path.startswith(f"{name}/") and path.endswith(".py")), "")
    for pattern, names in ELSEWHERE.items():
        if fnmatchcase(path, pattern) and ("/" in pattern or "/" not in path) and pattern.startswith(folder):
            return named(names.split())
    if folder:
        return of_module(PACKAGES[folder[:-1]], path.removeprefix(folder).removesuffix(".py")) or None
    if path.startswith("tests/") and path.endswith(".py"):
        return importers(path.removeprefix("tests/").removesuffix(".py").replace("/", ".").removesuffix(".__init__"))
    return None


def nearest(path: str) -> set[str]:
    """Tests for a path that nothing is known of: those that name it, and those of the frame."""
    name = Path(path).name
    return {file for file, text in sources().items() if is_test(file) and name in text} | named([FRAME])


NIGHTLY = r"pytest\.mark\.(nightly|browser|realdata)\b"
"""Marks of the nightly tier: `conftest.py` gives it to tests with the other two."""


def is_nightly(path: str) -> bool:
    """Whether tests of a file, or all of them, belong to the nightly tier."""
    return bool(re.search(NIGHTLY, sources()[path]))


def whole_file_is_nightly(path: str) -> bool:
    return bool(re.search(rf"^pytestmark = .*{NIGHTLY}", sources()[path], re.MULTILINE))


# --- the program ----------------------------------------------------------------------------------------------------


def plan(paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """What pytest is to run for changed paths, and lines that say why."""
    files: set[str] = set()
    lines = []
    for path in paths:
        found = tests_of(path)
        if found is None:
            found = nearest(path)
            lines.append(f"{path}: unknown to tests/quick.py; the tests that name it, and of the frame: {short(found)}")
        else:
            lines.append(f"{path}: {short(found)}")
        files |= found
    if night := {path for path in files if is_nightly(path)}:
        lines.append(f"not run here: make nightly PYTEST='{' '.join(sorted(night))}'")
    files = {path for path in files if not whole_file_is_nightly(path)}
    return [*sorted(files - {*ALWAYS}), *ALWAYS], lines


def short(files: Iterable[str]) -> str:
    return " ".join(sorted(path.removeprefix("tests/test_").removesuffix(".py") for path in files)) or "no tests"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", default="", help="a commit; where the branch left main, if none is named")
    parser.add_argument("--list", action="store_true", help="say what would run, and stop")
    given, options = parser.parse_known_args()
    since = given.base or base()
    paths = changed(since)
    wanted, lines = plan(paths)
    print(f"{len(paths)} files differ from {since[:10]}", *lines, f"always: {short(ALWAYS)}", sep="\n  ", flush=True)
    if given.list:
        return 0
    return subprocess.run([sys.executable, "-m", "pytest", "-m", "not nightly", *options, *wanted], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
