"""The frame: environments in step, licence and citation, style and types, and a wheel that works on its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import hetfl_core

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirements(*extras: str) -> dict[str, Requirement]:
    """What pyproject.toml asks for, by name: always, and for the extras."""
    texts = [*PROJECT["dependencies"], *(t for e in extras for t in PROJECT["optional-dependencies"][e])]
    parsed = [Requirement(t) for t in texts]
    return {canonicalize_name(r.name): r for r in parsed if r.name != PROJECT["name"]}


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
    assert have == {CONDA.get(n, n): r.specifier for n, r in requirements("eeg", "privacy", "deploy", "book").items()}


def test_constraints_pin_every_requirement_to_a_version_that_it_allows() -> None:
    lines = [s for s in (ROOT / "constraints.txt").read_text().splitlines() if s and not s.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    assert all(re.fullmatch(r"[\w.!]+", version) for version in pins.values()), "no local versions, no markers"
    pinned = {canonicalize_name(n): version for n, version in pins.items()}
    for name, requirement in requirements("eeg", "privacy", "deploy", "book", "dev").items():
        assert requirement.specifier.contains(pinned[name], prereleases=True), name


# --- the papers of the repository -------------------------------------------------------------------------------


def test_citation_licence_and_changelog_agree_with_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["version"] == hetfl_core.__version__
    assert citation["license"] == PROJECT["license"] == "BSD-3-Clause"
    assert (ROOT / "LICENSE").read_text().startswith("BSD 3-Clause License")
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == hetfl_core.__version__


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "book/how-to-run.md", ".ci/run"])
def test_make_targets_that_documents_name_exist(document: str) -> None:
    named = set(re.findall(r"(?:`|^)(?:[A-Z_]+=\S+ )?make ([a-z]+)", (ROOT / document).read_text(), re.MULTILINE))
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named
    assert named <= targets


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_relative_links_of_documents_lead_somewhere(document: str) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", (ROOT / document).read_text())
    links += re.findall(r'src="(?!https?://)([^"]+)"', (ROOT / document).read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []


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
    [("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",)],
    ids=["ruff", "format", "mypy"],
)
def test_style_and_types(command: tuple[str, ...]) -> None:
    run(sys.executable, "-m", *command, cwd=ROOT)


# --- the wheel --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment in which the wheel is installed, and which borrows everything else from the present one."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    venv.create(folder / "env", with_pip=False, symlinks=os.name != "nt")
    python = folder / "env" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # A path file adds the folder, but does not act on the path files in it: the editable checkout stays out.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    run(*pip, "--python", python, "install", "--quiet", "--no-deps", "--no-index", *folder.glob("*.whl"))
    return folder / "env" / "bin"


@pytest.fixture
def hetfl(installed: Path, tmp_path: Path):
    """Call the installed command in an empty folder, with an empty home and no data."""
    hidden = {"PYTHONPATH", "HETFL_DATA", "HETFL_CHECKPOINTS"}
    env = {k: v for k, v in os.environ.items() if k not in hidden}
    env |= {"HOME": str(tmp_path), "HETFL_DATA": str(tmp_path / "data"), "COLUMNS": "200"}
    return lambda *arguments: run(installed / arguments[0], *arguments[1:], cwd=tmp_path, env=env)


def test_the_wheel_is_what_is_imported(hetfl, installed: Path) -> None:
    where = hetfl("python", "-c", "import hetfl_core; print(hetfl_core.__file__)")
    assert Path(where.strip()).is_relative_to(installed.parent)


def test_installed_command_lists_methods_data_and_experiments(hetfl) -> None:
    listed = hetfl("hetfl", "list")
    for word in ("FLIC", "FedRep", "digits.bundled", "flic/bci-common40"):
        assert word in listed


def test_the_wheel_is_small_and_carries_every_record_but_for_the_seconds_of_rounds(hetfl, installed: Path) -> None:
    [wheel] = installed.parents[1].glob("*.whl")
    assert wheel.stat().st_size < 4_000_000
    command = "import hashlib; from hetfl_core.records import load, to_json; from dataclasses import replace\n"
    command += "short = lambda r: replace(r, history={k: v for k, v in r.history.items() if k != 'seconds'})\n"
    command += "found = load()\nassert found[0].path.suffix == {suffix!r}\n"
    command += "print(len(found), hashlib.sha256(''.join(to_json(short(r)) for r in found).encode()).hexdigest())"
    there = hetfl("python", "-c", command.format(suffix=".xz"))
    assert there == run(sys.executable, "-c", command.format(suffix=".jsonl"), cwd=ROOT)


def test_installed_command_prints_the_ledger(hetfl) -> None:
    assert "flic" in hetfl("hetfl", "ledger").lower()


def test_installed_command_trains_and_writes_a_record(hetfl, tmp_path: Path) -> None:
    small = ["--data", "n_clients=2", "--set", "local_epochs=1", "--rounds", "1"]
    hetfl("hetfl", "run", "Local", "--federation", "digits.bundled", *small, "--out", tmp_path / "record.json")
    assert '"method"' in (tmp_path / "record.json").read_text()


def test_installed_command_reproduces_into_the_working_folder(hetfl, installed: Path, tmp_path: Path) -> None:
    """Not into the installed library, which carries records of its own."""
    name, method = "fedcma/four-gaussians", "Local"
    hetfl("hetfl", "reproduce", name, "--scale", "book", "--seeds", "1", "--method", method)
    assert (tmp_path / "results" / name / "book" / f"{method}-seed0.json").exists()
    assert not list(installed.parent.rglob(f"results/{name}/book"))


def test_make_lists_its_targets() -> None:
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    assert "make book" in run("make", "help", cwd=ROOT)
