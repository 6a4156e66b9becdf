"""The frame: environments in step, licence and citation, style and types, and a wheel that works on its own."""

from __future__ import annotations

import ast
import gc
import lzma
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import hetfl_core
from hetfl_core.records import load

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BOOK = tomllib.loads((ROOT / "book" / "pyproject.toml").read_text())["project"]


def requirements(*extras: str) -> dict[str, Requirement]:
    """What the core and, for an extra of its own, the book ask for, by name: always, and for the extras."""
    optional = PROJECT["optional-dependencies"] | BOOK["optional-dependencies"]
    texts = [*PROJECT["dependencies"], *(t for e in extras for t in optional[e])]
    texts += BOOK["dependencies"] if set(extras) & set(BOOK["optional-dependencies"]) else []
    parsed = [Requirement(t) for t in texts]
    return {canonicalize_name(r.name): r for r in parsed if r.name not in (PROJECT["name"], BOOK["name"])}


def run(*command: str | Path, **options: object) -> str:
    """Output of a command, which must succeed."""
    words = [str(c) for c in command]
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


# --- environments -----------------------------------------------------------------------------------------------

CONDA = {"torch": "pytorch", "matplotlib": "matplotlib-base", "mne": "mne-base"}
"""Names that differ on conda-forge."""


def test_conda_environment_is_in_step_with_pyproject() -> None:
    listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pip = next(d["pip"] for d in listed if isinstance(d, dict))
    texts = [d for d in listed if isinstance(d, str)] + pip
    have = {r.name: r.specifier for r in map(Requirement, texts)}
    assert have.pop("python") == PROJECT["requires-python"]
    del have["pip"]
    assert have == {CONDA.get(n, n): r.specifier for n, r in requirements("eeg", "privacy", "deploy", "pages").items()}


def test_constraints_pin_every_requirement_to_a_version_that_it_allows() -> None:
    lines = [s for s in (ROOT / "constraints.txt").read_text().splitlines() if s and not s.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    assert all(re.fullmatch(r"[\w.!]+", version) for version in pins.values()), "no local versions, no markers"
    pinned = {canonicalize_name(n): version for n, version in pins.items()}
    for name, requirement in requirements("eeg", "privacy", "deploy", "pages", "dev").items():
        assert requirement.specifier.contains(pinned[name], prereleases=True), name


# --- imports ----------------------------------------------------------------------------------------------------

BROUGHT = {"dp_accounting": "dp-accounting"}
"""Distributions of imports whose names do not tell, where they may be missing here."""


@cache
def sources(folder: str) -> dict[Path, str]:
    """The modules below a folder."""
    return {p: p.read_text("utf8") for p in sorted((ROOT / folder).rglob("*.py")) if "_build" not in p.parts}


packages = cache(metadata.packages_distributions)


def nodes(source: str) -> list[ast.AST]:
    """All nodes of a module; Python looks for garbage meanwhile as often as there are some, and finds none."""
    gc.disable()
    try:
        return list(ast.walk(ast.parse(source)))
    finally:
        gc.enable()


@cache
def imports(source: str) -> frozenset[str]:
    """The full names of the modules of others that a module imports."""
    return frozenset(name for node in nodes(source) for name in imported(node))


def imported(node: ast.AST) -> list[str]:
    """The full names of the modules of others that a statement imports."""
    if isinstance(node, ast.ImportFrom):
        return [node.module] if node.module and not node.level else []
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


@cache
def distributions(folder: str) -> set[str]:
    """Distributions of others that the modules below a folder import."""
    paths = [p for name in ("hetfl_core", "book", "tests") for p in sources(name)]
    own = {p.stem for p in paths} | {p.parent.name for p in paths}
    names = set().union(*map(imports, sources(folder).values()))
    tops = {name.split(".")[0] for name in names} - own - set(sys.stdlib_module_names)
    known = packages()
    return {canonicalize_name(BROUGHT.get(top) or known.get(top, [top])[0]) for top in tops}


APART = {"fedjax", "jax", "haiku"}
"""What a program imports that runs in an environment of its own: `hetfl_book.peers.fedjax_side`."""

CORE_EXTRAS = ("eeg", "privacy", "deploy")
BOOK_EXTRAS = (*CORE_EXTRAS, "text", "pages")


def test_what_is_imported_is_declared() -> None:
    """Also what another package brings: that may do without it one day."""
    core = set(requirements(*CORE_EXTRAS))
    book = core | set(requirements(*BOOK_EXTRAS))
    assert distributions("hetfl_core") - core == set()
    assert distributions("book/hetfl_book") - core - set(requirements("text")) == APART
    assert distributions("book") - book == APART | {"hatchling"}, "what builds it is named by build-system"
    assert distributions("tests") - book - set(requirements("test", "dev")) == set()


def test_what_is_declared_is_imported() -> None:
    assert set(requirements(*CORE_EXTRAS)) <= distributions("hetfl_core")
    assert set(requirements("text")) <= distributions("hetfl_core") | distributions("book/hetfl_book")


POSIX_MODULES = {"resource", "fcntl", "pwd", "grp", "termios", "tty", "pty", "syslog", "posix", "readline", "curses"}
POSIX_ONLY = {
    *(
        "os.fork",
        "os.forkpty",
        "os.killpg",
        "os.getpgrp",
        "os.getpgid",
        "os.setsid",
        "os.getsid",
        "os.getuid",
        "os.geteuid",
    ),
    *(
        "os.getgid",
        "os.mkfifo",
        "os.uname",
        "os.WNOHANG",
        "os.sched_getaffinity",
        "os.getloadavg",
        "os.wait3",
        "os.nice",
    ),
    *("signal.SIGKILL", "signal.SIGALRM", "signal.alarm", "signal.setitimer", "signal.SIGHUP", "signal.SIGUSR1"),
    *("socket.AF_UNIX", "socket.send_fds", "socket.recv_fds", "time.tzset"),
}
ASKS = re.compile(r"hasattr\((os|signal|socket|time), |os\.name\b|sys\.platform|platform\.system\(|importorskip\(")
"""How code asks whether the system has what it uses."""


def asks(test: ast.expr) -> bool:
    """Whether a condition is one on the system."""
    return bool(ASKS.search(ast.unparse(test)))


def on_import(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when a module is imported: not the bodies of functions, nor what an ``except`` guards."""
    for node in ast.iter_child_nodes(tree):
        guarded = isinstance(node, ast.Try) and any("Error" in ast.unparse(h.type) for h in node.handlers if h.type)
        if guarded or (isinstance(node, ast.If) and asks(node.test)):
            continue
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from on_import(node)


def posix_only(source: str) -> Iterator[str]:
    """What Windows lacks and a module uses unasked: modules that it imports at its top, functions anywhere."""
    if not any(name in source and re.search(rf"\b{re.escape(name)}\b", source) for name in POSIX_MODULES | POSIX_ONLY):
        return
    (tree, *rest), lines = nodes(source), source.splitlines()
    yield from (f"import {name}" for node in on_import(tree) for name in imported(node) if name in POSIX_MODULES)
    conditions = [node for node in tree.body if isinstance(node, ast.If) and asks(node.test)]
    if any(re.match(r"raise |pytest\.skip\(|sys\.exit\(", ast.unparse(node.body[-1])) for node in conditions):
        return
    functions = [node for node in rest if isinstance(node, ast.FunctionDef)]
    spans = [(min([f.lineno, *(d.lineno for d in f.decorator_list)]), f.end_lineno) for f in functions]
    asking = [(first, last) for first, last in spans if ASKS.search("\n".join(lines[first - 1 : last]))]
    for node in rest:
        owner = node.value if isinstance(node, ast.Attribute) else None
        name = f"{owner.id}.{node.attr}" if isinstance(owner, ast.Name) else ""
        if name in POSIX_ONLY and not any(first <= node.lineno <= last for first, last in asking):
            yield f"{name} in line {node.lineno}"


def test_nothing_that_windows_lacks_is_needed_by_an_import_or_used_unasked() -> None:
    """But for the grader, which says itself that it needs Linux or macOS."""
    folders = ("hetfl_core", "book/hetfl_book", "book/_ext", "tests")
    found = {p: list(posix_only(text)) for folder in folders for p, text in sources(folder).items()}
    assert {p.relative_to(ROOT).as_posix(): what for p, what in found.items() if what} == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import resource", ["import resource"]),
        ("class A:\n    from pwd import getpwuid", ["import pwd"]),
        ("if True:\n    import fcntl as f", ["import fcntl"]),
        ("try:\n    import fcntl\nexcept ImportError:\n    fcntl = None", []),
        ("def f():\n    import resource", []),
        ("if os.name == 'posix':\n    import pwd", []),
        ("def f():\n    os.fork()", ["os.fork in line 2"]),
        ("if os.name != 'posix':\n    raise ImportError\ndef f():\n    os.fork()", []),
        ("def f():\n    if hasattr(os, 'fork'):\n        os.fork()", []),
        ("def f():\n    return hasattr(os, 'fork')\nos.killpg(1, 9)", ["os.killpg in line 3"]),
    ],
)  # fmt: skip
def test_what_windows_lacks_is_found(source: str, found: list[str]) -> None:
    assert list(posix_only(source)) == found


# --- the papers of the repository -------------------------------------------------------------------------------


def test_citation_licence_and_changelog_agree_with_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["version"] == hetfl_core.__version__
    assert citation["license"] == PROJECT["license"] == "BSD-3-Clause"
    assert (ROOT / "LICENSE").read_text().startswith("BSD 3-Clause License")
    newest = re.search(r"^## (\S+)(.*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == hetfl_core.__version__
    assert f"hetfl-core=={hetfl_core.__version__}" in BOOK["dependencies"], "the two belong together"
    for shared in ("license", "authors", "requires-python"):
        assert BOOK[shared] == PROJECT[shared]
    assert (ROOT / "book" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert ("date-released" in citation) is ("unreleased" not in newest[2]), "a date stands where there was a release"


def test_citation_names_the_papers_as_the_bibliography_does() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())["references"]
    found = {re.sub(r"\W+", " ", r["title"].lower()): r for r in cited}
    entries = re.split(r"^@", (ROOT / "book" / "references.bib").read_text(), flags=re.MULTILINE)
    for key in ("rakotomamonjy2024flic", "zhang2023fedcr", "regatti2022fedcma", "zhang2024hyfem"):
        (entry,) = (e for e in entries if f"{{{key}," in e)
        fields = dict(re.findall(r"^\s*(\w+)\s*= \{(.*)\},$", entry, re.MULTILINE))
        reference = found.pop(re.sub(r"\W+", " ", re.sub(r"[{}\\]", "", fields["title"]).lower()))
        names = [f"{a['family-names']}, {a['given-names']}" for a in reference["authors"]]
        assert " and ".join(names) == fields["author"]
        assert str(reference["year"]) == fields["year"]
        venue = reference.get("journal") or reference.get("conference", {}).get("name")
        assert venue == (fields.get("journal") or fields.get("booktitle"))
    assert found == {}


# --- what a public repository runs ------------------------------------------------------------------------------

WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
JOBS = {f"{name}/{job}": what for name, flow in WORKFLOWS.items() for job, what in flow["jobs"].items()}
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PYTHONS = {c.split(" :: ")[-1] for c in PROJECT["classifiers"] if c.startswith("Programming Language :: Python :: 3.")}


def test_python_versions_agree() -> None:
    assert min(PYTHONS, key=lambda v: int(v.split(".")[1])) == PROJECT["requires-python"].removeprefix(">=")
    tested = JOBS["tests/all"]["strategy"]["matrix"]["python"]
    assert set(tested) == PYTHONS
    for job in JOBS.values():
        versions = [s["with"]["python-version"] for s in job["steps"] if "python-version" in s.get("with", {})]
        matrix = job.get("strategy", {}).get("matrix", {}).get("python", [])
        assert {v for v in [*versions, *matrix] if "matrix" not in v} <= PYTHONS


@pytest.mark.parametrize("job", JOBS)
def test_a_job_runs_what_is_here_and_actions_are_pinned(job: str) -> None:
    for step in JOBS[job]["steps"]:
        assert re.fullmatch(r"[\w-]+/[\w-]+@(release/)?v\d+", step.get("uses", "a/b@v1"))
        for line in step.get("run", "").splitlines():
            check_command(line)


def check_command(line: str) -> None:
    """A command of a workflow or a hook: `make` with a target, pytest with files, or an installation."""
    words = line.split()
    if words[0] == "make":
        assert words[1] in TARGETS
    elif "pytest" in words:
        named = [word.lstrip("@") for word in words if word.startswith(("@", "tests/"))]
        assert named
        assert [name for name in named if not (ROOT / name).exists()] == []
    else:
        assert re.match(r"(python -m pip|uv pip) install ", line)
        extras = re.findall(r"\[(\w+)\]", line)
        assert set(extras) <= {*PROJECT["optional-dependencies"], *BOOK["optional-dependencies"]}


def test_the_cores_tests_are_there_and_need_nothing_but_the_core() -> None:
    names = (ROOT / "tests" / "core.txt").read_text().split()
    assert len(names) == len(set(names)) > 10
    texts = [(ROOT / name).read_text("utf8") for name in [*names, "tests/conftest.py", "tests/small.py"]]
    tops = {name.split(".")[0] for text in texts for name in imports(text)}
    tops -= set(sys.stdlib_module_names) | {p.stem for p in sources("tests")} | {"hetfl_core", "hetfl_book"}
    known = packages()
    assert {canonicalize_name(known[top][0]) for top in tops} <= set(requirements("test"))


def test_hooks_call_what_the_tests_call() -> None:
    from hetfl_core.cli import app

    commands = {each.name or each.callback.__name__ for each in app.registered_commands if each.callback}
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    for repo in HOOKS:
        if "ruff" in repo["repo"]:
            assert repo["rev"] == f"v{pins['ruff']}"
        for hook in repo["hooks"] if repo["repo"] == "local" else ():
            if match := re.match(r"\.venv/bin/hetfl (\w+)", hook["entry"]):
                assert match[1] in commands
            else:
                check_command(hook["entry"])
                file, word = re.search(r"(tests/\S+\.py) -k (\w+)", hook["entry"]).groups()
                assert re.search(rf"def test_\w*{word}", (ROOT / file).read_text())


def test_text_files_end_in_one_line_end() -> None:
    skipped = re.compile(r"data/results/|book/_static/")
    some = {p: p.read_bytes() for p in tracked() if not skipped.match(p.relative_to(ROOT).as_posix())}
    text = {p: content for p, content in some.items() if content and b"\0" not in content}
    assert [str(p) for p, content in text.items() if not content.endswith(b"\n") or content.endswith(b"\n\n")] == []


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "book/how-to-run.md", ".ci/run"])
def test_make_targets_that_documents_name_exist(document: str) -> None:
    named = set(re.findall(r"(?:`|^)(?:[A-Z_]+=\S+ )?make ([a-z]+)", (ROOT / document).read_text(), re.MULTILINE))
    assert named
    assert named <= TARGETS


@pytest.mark.parametrize(
    "document",
    ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md"]
    + [f"contributing/{name}.md" for name in ("methods", "records", "speed")],
)
def test_relative_links_of_documents_lead_somewhere(document: str) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", (ROOT / document).read_text())
    links += re.findall(r'src="(?!https?://)([^"]+)"', (ROOT / document).read_text())
    folder = (ROOT / document).parent
    assert [link for link in links if not (folder / link).exists()] == []


def tracked() -> list[Path]:
    """The files that git tracks or would track; all text but what is vendored."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    return [ROOT / p for p in listed if (ROOT / p).is_file() and "_static/mathjax/" not in p]


def test_no_file_names_a_place_of_one_machine() -> None:
    places = re.compile("/(" + "|".join(["root", r"home/\w+", r"Users/\w+", "work", "farm"]) + ")/")
    found = [
        f"{p.relative_to(ROOT)}: {m[0]}" for p in tracked() if (m := places.search(p.read_text("utf8", "replace")))
    ]
    assert [f for f in found if not f.startswith("tests/test_repository.py")] == []


def test_no_large_file_is_tracked() -> None:
    assert [p for p in tracked() if p.stat().st_size > 2_000_000] == []


def test_ci_script_can_be_run() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    run("bash", "-n", ROOT / ".ci" / "run")


# --- style and types --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [("ruff", "check", "."), ("ruff", "format", "--check", "."), pytest.param(("mypy",), marks=pytest.mark.nightly)],
    ids=["ruff", "format", "mypy"],
)
def test_style_and_types(command: tuple[str, ...]) -> None:
    run(sys.executable, "-m", *command, cwd=ROOT)


# --- the two distributions ------------------------------------------------------------------------------------------


def pip(*words: str | Path) -> str:
    return run(sys.executable, "-m", "pip", "--disable-pip-version-check", *words)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both wheels, by the names of their distributions."""
    folder = tmp_path_factory.mktemp("wheels")
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT, ROOT / "book")
    found = {path.name.partition("-")[0].replace("_", "-"): path for path in folder.glob("*.whl")}
    assert set(found) == {"hetfl-core", "hetfl-book"}
    return found


def environment(folder: Path, *wheels: Path) -> Path:
    """Where the commands are of an environment with these wheels, which borrows from the present one all but ours."""
    venv.create(folder / "env", with_pip=False, symlinks=os.name != "nt")
    python = folder / "env" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (borrowed := folder / "borrowed").mkdir()
    for thing in Path(sysconfig.get_path("purelib")).iterdir():
        # Neither our packages nor what says that they are installed, nor the path files of an editable checkout.
        if not thing.name.startswith("hetfl") and thing.suffix != ".pth":
            (borrowed / thing.name).symlink_to(thing)
    (site / "borrowed.pth").write_text(f"{borrowed}\n")
    pip("--python", python, "install", "--quiet", "--no-deps", "--no-index", "--no-compile", *wheels)
    return folder / "env" / "bin"


def command(bin_: Path):
    """Call a command of an environment in an empty folder, with an empty home and no data."""
    (empty := bin_.parents[1] / "empty").mkdir()
    hidden = {"PYTHONPATH", "HETFL_DATA", "HETFL_CHECKPOINTS"}
    env = {k: v for k, v in os.environ.items() if k not in hidden}
    env |= {
        "HOME": str(empty),
        "HETFL_DATA": str(empty / "data"),
        "HETFL_RESULTS": str(empty / "made"),
        "COLUMNS": "200",
    }
    return lambda *arguments: run(bin_ / arguments[0], *arguments[1:], cwd=empty, env=env)


@pytest.fixture(scope="session")
def alone(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory):
    """Call a command where the core is installed, and no book."""
    return command(environment(tmp_path_factory.mktemp("core"), wheels["hetfl-core"]))


@pytest.fixture(scope="session")
def installed(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands are of an environment with both."""
    return environment(tmp_path_factory.mktemp("both"), *wheels.values())


@pytest.fixture(scope="session")
def hetfl(installed: Path):
    """Call a command where both are installed."""
    return command(installed)


RUN = "run Local --federation digits.bundled --data n_clients=2 --set local_epochs=1 --rounds 1 --out record.json"

ALONE = f"""
import hetfl_core
from hetfl_core import records
from hetfl_core.cli import app
from hetfl_core.datasets import registry

for line in (hetfl_core.__file__, records.load(), len(registry.entries())):
    print(line, end="\f")
for command in ("list", "{RUN}", "--help"):
    app(command.split(), standalone_mode=False)
    print(end="\f", flush=True)
import importlib.util
print(importlib.util.find_spec("hetfl_book"))
"""


@pytest.mark.nightly
def test_the_core_alone_lists_and_runs_and_says_nothing_of_the_book(alone) -> None:
    place, records, files, listed, ran, offered, book = alone("python", "-c", ALONE).split("\f")
    assert "site-packages" in place
    assert (records, book.strip()) == ("[]", "None")
    assert int(files) > 10, "the registry came with it"
    assert "FLIC" in listed
    assert "digits.bundled" in listed
    assert "Experiments" not in listed
    assert "accuracy" in ran
    assert "compare" in offered
    assert not re.search(r"\b(reproduce|ledger|verify|headtohead|collect|pack)\b", offered)


def test_the_cores_wheel_is_small_and_carries_the_registry_alone(wheels: dict[str, Path]) -> None:
    assert wheels["hetfl-core"].stat().st_size < 1_000_000
    with zipfile.ZipFile(wheels["hetfl-core"]) as archive:
        names = archive.namelist()
    assert [name for name in names if "_data" in name] == ["hetfl_core/_data/registry.toml"]
    assert {name.split("/")[0] for name in names} == {"hetfl_core", f"hetfl_core-{hetfl_core.__version__}.dist-info"}


@pytest.mark.nightly
def test_an_sdist_makes_the_same_wheel(wheels: dict[str, Path], tmp_path: Path) -> None:
    """Also without the other distribution's sources beside it."""
    for name, folder in {"hetfl-core": ROOT, "hetfl-book": ROOT / "book"}.items():
        run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=folder)
        [archive] = tmp_path.glob(f"{name.replace('-', '_')}-*.tar.gz")
        pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, archive)
        with zipfile.ZipFile(wheels[name]) as one, zipfile.ZipFile(tmp_path / wheels[name].name) as two:
            assert sorted(one.namelist()) == sorted(two.namelist())


PROGRAM = f"""
import hetfl_book
import hetfl_core
from hetfl_core.cli import app
from hetfl_core.records import load

print(hetfl_core.__file__, hetfl_book.__file__, end="\f")
found = load()
print(found[0].path.suffix, [(r.relative_path, r.metrics, len(r.history.get("round", []))) for r in found], end="\f")
del found
for command in ("list", "ledger", "reproduce fedcma/four-gaussians --scale book --seeds 1 --method Local", "{RUN}"):
    app(command.split(), standalone_mode=False)
    print(end="\f", flush=True)
"""


@pytest.fixture(scope="session")
def told(hetfl) -> list[str]:
    """What the installed library says, command by command: in one process, for it costs seconds to start."""
    return hetfl("python", "-c", PROGRAM).split("\f")


@pytest.mark.nightly
def test_the_wheels_are_what_is_imported(told: list[str], installed: Path) -> None:
    assert all(Path(place).is_relative_to(installed.parent) for place in told[0].split())


SECONDS = re.compile(rb'"seconds":\[[^]]*\],|,"seconds":\[[^]]*\]')
"""Those of rounds, in a packed record's line; a run's own are a number."""


@pytest.mark.nightly
def test_the_books_wheel_is_small_and_carries_every_record_but_for_the_seconds_of_rounds(
    told: list[str], wheels: dict[str, Path], tmp_path: Path
) -> None:
    assert wheels["hetfl-book"].stat().st_size < 6_000_000  # a record of the benchmark takes 200 bytes
    here, there = ROOT / "data" / "results", "hetfl_book/_data/results/"
    packed = tmp_path / "packed"  # what a run has left in the working tree is not yet packed, and in no wheel
    shutil.copytree(here, packed, ignore=lambda folder, names: [n for n in names if n.endswith(".json")])
    with zipfile.ZipFile(wheels["hetfl-book"]) as archive:
        for path in sorted(here.rglob("*.jsonl")):
            carried = archive.read(f"{there}{path.relative_to(here).as_posix()}.xz")
            assert lzma.decompress(carried) == SECONDS.sub(b"", path.read_bytes()), path
    said = [(r.relative_path, r.metrics, len(r.history.get("round", []))) for r in load(packed)]
    assert told[1] == f".xz {said}", "the installed library reads what it carries"


@pytest.mark.nightly
def test_the_books_wheel_carries_all_other_data_too(wheels: dict[str, Path]) -> None:
    """Pages read them, and are executed from a wheel, too; the cards belong to the book's pages alone."""
    data = ROOT / "data"
    wanted = {path.relative_to(data).as_posix() for path in data.rglob("*.*") if path.is_file()}
    wanted = {name for name in wanted if not name.startswith(("results/", "cards/", "registry.toml", "."))}
    with zipfile.ZipFile(wheels["hetfl-book"]) as archive:
        carried = {name.removeprefix("hetfl_book/_data/") for name in archive.namelist()}
    assert wanted - carried == set()
    assert {"headtohead.csv", "queue.toml", "advice.csv"} <= wanted
    assert not any(name.startswith(("cards/", "registry")) for name in carried)


@pytest.mark.nightly
def test_installed_command_runs(hetfl) -> None:
    assert "reproduce" in hetfl("hetfl", "--help")


@pytest.mark.nightly
def test_installed_library_lists_prints_the_ledger_reproduces_and_trains(told: list[str], installed: Path) -> None:
    """Into the user's cache, not the installed library's records."""
    listed, ledger = told[2:4]
    for word in ("FLIC", "FedRep", "digits.bundled", "flic/bci-common40"):
        assert word in listed
    assert "flic" in ledger.lower()
    empty = installed.parents[1] / "empty"
    assert (empty / "made" / "fedcma/four-gaussians" / "book" / "Local-seed0.json").exists()
    assert not list(installed.parent.rglob("results/fedcma/four-gaussians/book"))
    assert '"method"' in (empty / "record.json").read_text()


def test_make_lists_its_targets() -> None:
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    assert "make book" in run("make", "help", cwd=ROOT)
