"""How much the tests notice: change one operator or constant of the core at random, and see whether they fail.

``make mutants`` (``N=200 SEED=0 JOBS=2 ONLY=``) draws N changes over the modules of `TESTS`, writes each into a copy of
the tree, and runs the tests of that module there: first those that run the changed function, the quickest first, then
what else is in their files, until one fails. A change that no test notices is either *equivalent* (nothing that can be
observed changes: ``mutants_equivalent.toml`` lists those, each with its reason) or a hole in the tests. Less than 95 %
noticed is an error.

What costs is importing PyTorch: it is imported once, and each change has a fork of that process. (So this runs where
``os.fork`` does: not on Windows.) How long each test takes and which functions it enters is measured where it is not
known and kept in ``.pytest_cache/mutants`` until the test's file changes: where the core has
changed since then, tests come in another order, no more. At the end the tests that noticed something are run on the
core as it is, where they must pass.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import hashlib
import importlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

if os.name != "posix":
    raise ImportError("the mutants need os.fork, which this system lacks: run them on Linux or macOS")
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / ".pytest_cache" / "mutants"
EQUIVALENT = ROOT / "tests" / "mutants_equivalent.toml"
WANTED = 0.95

TESTS = {
    "rng": "rng",
    "settings": "methods networks simulation",
    "clients": "federation features",
    "frames": "federation features tables",
    "inputs": "federation blocks",
    "preparation": "tables",
    "splits": "tables federation groups",
    "columns": "columns tables",
    "tables": "tables deployment",
    "views": "views blocks features comparing",
    "comparing": "comparing together",
    "estimators": "estimators",
    "learners": "options estimators simulation comparing",
    "tuning": "tuning",
    "deployment/agreement": "deployment",
    "reporting/judging": "reporting",
    "reporting/page": "reporting",
    "reporting/report": "reporting",
    "reporting/training": "reporting",
    "reporting/trials": "reporting",
    "reporting/ways": "reporting",
    "parallel": "parallel",
    "padding": "federation training",
    "federation": "federation features",
    "partition/__init__": "partition",
    "partition/_checks": "partition",
    "partition/_classes": "partition",
    "partition/_proportions": "partition",
    "networks/composed": "networks mixed blocks",
    "networks/images": "networks normalised",
    "networks/identity": "module simulation",
    "networks/module": "module",
    "networks/layers": "networks",
    "networks/model": "networks mixed",
    "distances/__init__": "distances",
    "distances/averages": "distances",
    "distances/parts": "distances",
    "distances/tangent": "baselines",
    "matching": "matching hyfem",
    "baselines": "baselines kept scikit",
    "datasets/fewer": "baselines clinical",
    "benchmark": "benchmark",
    "engine/checkpoint": "simulation module",
    "engine/evaluation": "evaluation",
    "engine/last_step": "measures",
    "engine/measures": "measures",
    "engine/layout": "layout",
    "engine/newcomers": "simulation",
    "engine/options": "simulation",
    "engine/pool": "pool",
    "engine/prediction": "simulation",
    "engine/run": "run simulation",
    "engine/sides": "simulation private methods",
    "engine/simulation": "simulation methods seeds",
    "engine/simulator": "simulation methods layout",
    "engine/together": "together",
    "engine/apart": "headtohead",
    "engine/learner": "options estimators comparing",
    "engine/trainer": "simulation methods layout seeds",
    "engine/trained": "trained kept",
    "engine/predictor": "scikit kept trained",
    "scikit": "kept scikit",
    "engine/stacks": "training federation",
    "engine/training": "training methods",
    "engine/steps": "steps training",
    "methods/descent": "steps training",
    "tape": "steps layout anchor_terms",
    "methods/alignment": "flic anchor_terms",
    "methods/anchor_terms": "anchor_terms flic",
    "methods/base": "methods features training simulation",
    "methods/ditto": "personal",
    "methods/fedcr": "personal fedcr_settings",
    "methods/fedpac": "personal",
    "methods/fedper": "personal",
    "methods/fedprox": "methods hyfem",
    "methods/fedsr": "personal",
    "methods/server": "fedgen pfedhn",
    "methods/stochastic": "personal",
    "methods/fusion": "hyfem blocks",
    "methods/hyfem": "hyfem blocks",
    "methods/flic": "flic methods",
    "methods/privacy": "privacy flic",
    "methods/schemes": "methods flic simulation",
    "theory/fedcr": "theory_fedcr",
    "theory/flic": "theory",
    "theory/flic_bound": "theory",
    "theory/flic_distances": "theory",
    "ledger/comparison": "comparison",
    "ledger/judging": "ledger",
    "ledger/published": "ledger",
    "records/record": "records",
    "records/renaming": "storage",
    "records/storage": "storage records",
    "deployment/coordinator": "deployment",
    "deployment/client_file": "deployment tables",
    "deployment/site": "deployment",
    "deployment/sums": "deployment",
    "deployment/gate": "gate",
    "deployment/secret": "secret",
    "deployment/strategy": "strategy",
    "deployment/wire": "deployment",
    "statistics/differences": "statistics",
    "statistics/of_records": "statistics ledger records",
    "datasets/blocks": "blocks_data",
    "datasets/rendering": "solids",
    "datasets/solids": "solids",
    "datasets/multiview": "multiview",
    "datasets/clinical": "clinical heart",
    "datasets/liver": "clinical",
    "datasets/thyroid": "clinical",
    "datasets/image_files": "pooled blocks_data datasets",
    "datasets/project": "project",
    "datasets/eeg_cutting": "eeg eeg_own",
    "datasets/eeg_runs": "eeg_own",
    "datasets/eeg_vectors": "eeg eeg_own",
    "datasets/eeg_blocks": "eeg_blocks",
    "datasets/eeg_head": "eeg_simulated",
    "datasets/eeg_trials": "eeg",
    "datasets/text": "text",
}
"""Modules that carry numbers, all of the core's among them, and their tests; `EVERYWHERE` are those of all.

Methods and data sets of the core that are not named here have the tests of their own name, where there are such, else
those of all methods or data sets. `make quick` goes by this list, too.
"""

WORDS = {
    "_version": "repository",
    "errors": "errors",
    "checks": "fuzz options",
    "cli": "cli",
    "cli_tables": "reporting",
    "files": "files storage",
    "keywords": "options",
    "numerics": "numerics",
    "cli_options": "cli",
    "plots": "plots eeg_plots moving transport_plots",
    "plugins": "registry datasets",
    "records/provenance": "records collecting",
    "datasets/eegmmidb": "eeg eeg_people",
    "datasets/recordings": "eeg eeg_own",
    "datasets/registry": "registry",
    "deployment/apps": "deployment",
    "deployment/commands": "deployment gate",
    "deployment/programs": "gate deployment",
    "deployment/trial": "flower",
}
"""Modules of the core that carry none, and their tests: what is typed, printed, drawn, downloaded and started."""

for _room in ("methods", "datasets"):
    for _path in sorted((ROOT / "hetfl_core" / _room).glob("[!_]*.py")):
        _own = _path.stem if (ROOT / "tests" / f"test_{_path.stem}.py").exists() else _room
        if f"{_room}/{_path.stem}" not in WORDS:
            TESTS.setdefault(f"{_room}/{_path.stem}", _own)

EVERYWHERE = "golden"

PRELOAD = """
    torch torch._dynamo torch.func numpy pandas scipy.stats scipy.linalg scipy.optimize scipy.signal filelock
    sklearn.discriminant_analysis sklearn.linear_model sklearn.datasets sklearn.decomposition sklearn.manifold
    sklearn.metrics sklearn.neighbors sklearn.svm sklearn.ensemble matplotlib.pyplot typer.testing safetensors.torch
    tqdm.auto pooch ot hypothesis.strategies hypothesis.extra.numpy yaml mne pyriemann dp_accounting
"""
"""What is imported before forking, where it is installed."""


# --- changes --------------------------------------------------------------------------------------------------------

SWAPS: dict[type, tuple[str, tuple[str, ...]]] = {
    ast.Add: ("+", ("-",)),
    ast.Sub: ("-", ("+",)),
    ast.Mult: ("*", ("/",)),
    ast.Div: ("/", ("*",)),
    ast.FloorDiv: ("//", ("/",)),
    ast.Mod: ("%", ("//",)),
    ast.Pow: ("**", ("*",)),
    ast.BitAnd: ("&", ("|",)),
    ast.BitOr: ("|", ("&",)),
    ast.Lt: ("<", ("<=", ">")),
    ast.LtE: ("<=", ("<", ">=")),
    ast.Gt: (">", (">=", "<")),
    ast.GtE: (">=", (">", "<=")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.And: ("and", ("or",)),
    ast.Or: ("or", ("and",)),
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "argmin": "argmax", "argmax": "argmin"}
SILENT = {"warn", "tqdm", "print", "set_postfix_str"}
"""Calls of which the arguments are words or looks."""
ROUGH = {"stream", "numpy_stream", "manual_seed", "_seeded", "memory"}
"""Calls whose constants say which of equally good random numbers, or estimate memory to the order only."""
SYSTEMS = {"TYPE_CHECKING", "sys.platform", "os.name"}
"""What is decided by these is another branch elsewhere, which no test of one machine sees."""

TESTED = (ast.If, ast.IfExp, ast.While)


@dataclass(frozen=True)
class Mutant:
    """One change: bytes `start` to `end` of a file become `new`."""

    file: str
    line: int
    was: str
    now: str
    start: int
    end: int
    new: bytes

    @property
    def key(self) -> tuple[str, str, str]:
        """By which a change is known when lines above it come or go."""
        return self.file, self.was, self.now


def sites(file: str, source: bytes) -> list[list[Mutant]]:
    """The places of a module at which something can be changed, each with its possible changes.

    Left out are words (docstrings, messages of errors and warnings, f-strings), annotations and decorators, what is
    decided by the system that it runs on, and constants that change nothing (`silent_constants`).
    """
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def at(line: int, column: int) -> int:
        return starts[line - 1] + column

    def edit(start: int, end: int, new: str) -> Mutant:
        line = bisect_right(starts, start)
        row = source[starts[line - 1] : starts[line]]
        a, b = start - starts[line - 1], end - starts[line - 1]
        now = row[:a] + new.encode() + row[b:]
        return Mutant(file, line, row.decode().strip(), now.decode().strip(), start, end, new.encode())

    def between(left: ast.expr, right: ast.expr, operator: ast.AST) -> list[Mutant]:
        old, new = SWAPS.get(type(operator), ("", ()))
        start, end = at(left.end_lineno, left.end_col_offset), at(right.lineno, right.col_offset)  # type: ignore[arg-type]
        place = source[start:end].find(old.encode())
        if not new or place < 0 or b"#" in source[start:end]:
            return []
        return [edit(start + place, start + place + len(old.encode()), n) for n in new]

    def here(node: ast.expr, new: str) -> Mutant:
        return edit(at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset), new)  # type: ignore[arg-type]

    def text(node: ast.expr) -> str:
        return source[at(node.lineno, node.col_offset) : at(node.end_lineno, node.end_col_offset)].decode()

    tree = ast.parse(source)
    silent = {constant for node in ast.walk(tree) for constant in silent_constants(node)}

    def of(node: ast.AST) -> Iterator[list[Mutant]]:
        if isinstance(node, ast.BinOp):
            yield between(node.left, node.right, node.op)
        elif isinstance(node, ast.AugAssign):
            yield between(node.target, node.value, node.op)
        elif isinstance(node, ast.BoolOp):
            yield from (between(a, b, node.op) for a, b in zip(node.values, node.values[1:], strict=False))
        elif isinstance(node, ast.Compare):
            terms = [node.left, *node.comparators]
            yield from (between(a, b, o) for a, b, o in zip(terms, terms[1:], node.ops, strict=False))
        elif isinstance(node, ast.UnaryOp):
            yield [here(node, f"({text(node.operand)})")]
        elif isinstance(node, ast.Constant):
            yield [here(node, new) for new in constants(node.value)]
        elif isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if isinstance(node.ctx, ast.Load) and name in NAMES:
                end = at(node.end_lineno, node.end_col_offset)  # type: ignore[arg-type]
                yield [edit(end - len(name.encode()), end, NAMES[name])]
        if isinstance(node, TESTED):
            yield [here(node.test, f"(not ({text(node.test)}))")]
        elif isinstance(node, ast.comprehension):
            yield from ([here(test, f"(not ({text(test)}))")] for test in node.ifs)

    def walk(node: ast.AST) -> Iterator[list[Mutant]]:
        yield from of(node)
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not words(child) and child not in silent:
                    yield from walk(child)

    return [found for found in walk(tree) if found]


def constants(value: object) -> list[str]:
    """Other values for a number or a truth value; none for words."""
    if isinstance(value, bool):
        return [str(not value)]
    if isinstance(value, int):
        return [str(value + 1), str(value - 1)] if value > 0 else [str(value + 1)]
    if isinstance(value, float):
        return [repr(2 * value), repr(value / 2)] if value else ["1.0"]
    return []


def words(node: ast.AST) -> bool:
    """Whether a node carries words or types rather than numbers."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and isinstance(node.right, ast.Name):
        return node.right.id[:1].isupper()  # a union of types
    if isinstance(node, ast.Call):
        return called(node) in SILENT
    if isinstance(node, ast.If | ast.IfExp):
        return {ast.unparse(part) for part in ast.walk(node.test)} & SYSTEMS != set()
    return False


def called(node: ast.AST) -> str:
    """The last name of what a call calls; nothing for what is no call."""
    func = getattr(node, "func", None)
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


def silent_constants(call: ast.AST) -> list[ast.AST]:
    """Constants of a call that are `ROUGH`, a check of lengths that are equal (``zip(strict=True)``), or looks."""
    name = called(call)
    if name in ROUGH:
        return [node for node in ast.walk(call) if isinstance(node, ast.Constant)]
    given = [(name, each.arg, each.value) for each in getattr(call, "keywords", ())]
    looks = {("zip", "strict", True), ("field", "repr", False)}
    return [value for name, arg, value in given if (name, arg, getattr(value, "value", None)) in looks]


PACKAGES = ("hetfl_core", "book/hetfl_book")


def path_of(module: str) -> str:
    """The file of a module of `TESTS`."""
    [found] = [f"{folder}/{module}.py" for folder in PACKAGES if (ROOT / folder / f"{module}.py").exists()]
    return found


def module_of(file: str) -> str:
    """The other way round."""
    return next(file.removeprefix(f"{p}/").removesuffix(".py") for p in PACKAGES if file.startswith(f"{p}/"))


def draw(n: int, seed: int, only: Sequence[str]) -> list[Mutant]:
    """N changes at different places, uniformly among the places of all modules (n = 0: every place once)."""
    rng = random.Random(seed)
    modules = [module for module in TESTS if not only or any(part.partition(":")[0] in module for part in only)]
    places = [
        site
        for module in modules
        for site in sites(path_of(module), (ROOT / path_of(module)).read_bytes())
        if not only or any(meant(module, site[0].line, part) for part in only)
    ]
    picked = rng.sample(places, min(n or len(places), len(places)))
    return [rng.choice(site) for site in picked]


def meant(module: str, line: int, part: str) -> bool:
    """Whether a place lies in ``part of a module's name`` or ``part of a name:first line-last line``."""
    name, _, lines = part.partition(":")
    first, _, last = lines.partition("-")
    return name in module and (not lines or int(first) <= line <= int(last))


# --- running the tests in a fork ------------------------------------------------------------------------------------


def fork(tree: Path, log: Path, seconds: float, work: Callable[[], int]) -> int:
    """Start `work` in a process of its own, within a copy of the project and a limit of CPU time; its process id."""
    import resource

    if pid := os.fork():
        return pid
    code = 70
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        limit = int(seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
        os.chdir(tree)
        sys.path[:0] = [str(tree), str(tree / "book"), str(tree / "tests")]
        os.environ["PYTHONPATH"] = os.pathsep.join([str(tree), str(tree / "book")])
        code = work()
    finally:
        os._exit(code)


def options(*more: str) -> list[str]:
    return ["-q", "-p", "no:cacheprovider", *more]


def measure(files: Sequence[str], out: Path) -> int:
    """Run test files unchanged; write outcome, CPU seconds and entered functions of each test as JSON."""
    import pytest

    found: dict[str, dict[str, Any]] = {}
    entered, cover = watch(f"{Path.cwd()}/"), coverage_of_old_pythons()

    class Watch:
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(self, item: Any) -> Any:
            begin = time.process_time()
            found[item.nodeid] = {"good": True}
            entered.clear()
            if hasattr(sys, "monitoring"):
                sys.monitoring.restart_events()
            if cover:
                cover.switch_context(item.nodeid)
            result = yield
            found[item.nodeid] |= {"seconds": time.process_time() - begin, "runs": sorted(entered)}
            return result

        def pytest_runtest_logreport(self, report: Any) -> None:
            found[report.nodeid]["good"] &= not report.failed

    code = pytest.main(options(*files), plugins=[Watch()])
    if cover:
        cover.stop()
        for path in cover.get_data().measured_files():
            name, known = Path(path).relative_to(Path.cwd()).as_posix(), functions(Path(path).read_bytes())
            for line, tests in cover.get_data().contexts_by_lineno(path).items():
                for test in filter(None, tests if line in known else ()):
                    found[test]["runs"].append(f"{name}::{known[line]}")
    out.write_text(json.dumps(found))
    return 0 if code in (0, 1) else int(code)


def watch(root: str) -> set[str]:
    """Functions of the core as they are entered, as ``file::name``: Python 3.12 tells for next to nothing."""
    entered: set[str] = set()
    if not hasattr(sys, "monitoring"):
        return entered
    monitoring = sys.monitoring

    def enter(code: Any, offset: int) -> Any:
        if code.co_filename.startswith(f"{root}hetfl_core"):
            entered.add(f"{code.co_filename.removeprefix(root)}::{code.co_qualname}")
        return monitoring.DISABLE  # until the next test

    monitoring.use_tool_id(monitoring.COVERAGE_ID, "mutants")
    monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.PY_START, enter)
    monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.PY_START)
    return entered


def coverage_of_old_pythons() -> Any:
    """Before Python 3.12 it tells which functions are entered, where it is installed; else time alone counts."""
    if hasattr(sys, "monitoring"):
        return None
    try:
        from coverage import Coverage
    except ImportError:
        return None
    cover = Coverage(source=[str(Path.cwd() / folder) for folder in PACKAGES], data_file=None, config_file=False)
    cover.start()
    return cover


def attempt(files: Sequence[str], order: dict[str, int], left_out: Set[str] | None) -> int:
    """Run tests in the given order until one fails, but for those that are left out (None: all those without order)."""
    import pytest

    class Order:
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            good = [i for i in items if (i.nodeid in order if left_out is None else i.nodeid not in left_out)]
            items[:] = sorted(good, key=lambda item: order.get(item.nodeid, -1))

    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    until = [] if left_out is None else ["-x"]
    return int(pytest.main(options(*until, "--tb=line", "-rf", *files), plugins=[Order()]))


def make_tree(folder: Path) -> Path:
    """A copy of both packages and the tests; all else of the project is linked."""
    (folder / "book").mkdir(parents=True)
    copied = {ROOT / name for name in ("tests", *PACKAGES)}
    for path in [*ROOT.iterdir(), *(ROOT / "book").iterdir()]:
        place = folder / path.relative_to(ROOT)
        if path in copied:
            shutil.copytree(path, place, ignore=shutil.ignore_patterns("__pycache__"))
        elif path != ROOT / "book" and not path.name.startswith((".venv", ".pytest_cache")):
            place.symlink_to(path)
    return folder


def fingerprint(file: str) -> str:
    """Of a test file, and of the version of what is measured."""
    return hashlib.sha256((ROOT / file).read_bytes() + b"functions").hexdigest()[:16]


def baseline(files: Sequence[str], tree: Path, jobs: int) -> dict[str, dict[str, Any]]:
    """Outcome, time and functions of each test of these files, measured now or remembered."""
    KEPT.mkdir(parents=True, exist_ok=True)
    kept = {file: KEPT / f"{Path(file).stem}-{fingerprint(file)}.json" for file in files}
    running: dict[int, tuple[str, Path]] = {}
    todo = [file for file in files if not kept[file].exists()]
    while todo or running:
        while todo and len(running) < jobs:
            file = todo.pop(0)
            new = kept[file].with_suffix(".tmp")
            log = tree.parent / f"{Path(file).stem}.log"
            work = lambda file=file, new=new: measure([file], new)  # noqa: E731
            print(f"measuring {file}", flush=True)
            running[fork(tree, log, 3600, work)] = file, new
        pid, status = os.wait()
        file, new = running.pop(pid)
        if status or not new.exists():
            log = tree.parent / f"{Path(file).stem}.log"
            raise SystemExit(f"{file} could not be run unchanged:\n{log.read_text()[-3000:]}")
        for old in KEPT.glob(f"{Path(file).stem}-????????????????.json"):
            old.unlink()
        new.replace(kept[file])
    tests: dict[str, dict[str, Any]] = {}
    for path in kept.values():
        tests |= json.loads(path.read_text())
    return tests


@dataclass
class Job:
    """A change that is being tried."""

    mutant: Mutant
    slot: int
    log: Path
    deadline: float


def try_all(
    mutants: Sequence[Mutant],
    tests: dict[str, dict[str, Any]],
    trees: list[Path],
    report: Callable[[Mutant, str], None],
) -> tuple[dict[Mutant, str], set[str]]:
    """Try each change in a tree of its own; 'killed', 'too long' or 'survived' for each, and the tests that failed."""
    todo, running, verdicts = list(mutants), {}, {}
    noticed: set[str] = set()
    free = list(range(len(trees)))
    while todo or running:
        while todo and free:
            job = start(todo.pop(0), free.pop(), tests, trees)
            running[job[0]] = job[1]
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            time.sleep(0.05)
            for late in [p for p, job in running.items() if time.monotonic() > job.deadline]:
                os.killpg(late, signal.SIGKILL)
            continue
        job = running.pop(pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what the tests left behind
        write(trees[job.slot] / job.mutant.file, (ROOT / job.mutant.file).read_bytes())
        free.append(job.slot)
        code = os.waitstatus_to_exitcode(status)
        if code in (5, 70):
            raise SystemExit(f"the tests could not be run on {job.mutant}:\n{job.log.read_text()[-3000:]}")
        verdicts[job.mutant] = "survived" if code == 0 else "too long" if code < 0 else "killed"
        noticed.update(set(re.findall(r"^FAILED (\S+\.py::.+?)(?: - .*)?$", job.log.read_text(), re.M)) & tests.keys())
        report(job.mutant, verdicts[job.mutant])
    return verdicts, noticed


def fails_unchanged(names: Set[str], tree: Path) -> list[str]:
    """Those of some tests that do not pass on the core as it is."""
    if not names:
        return []
    log = tree.with_suffix(".log")
    order = {name: 0 for name in names}
    files = sorted({name.split("::")[0] for name in names})
    os.waitpid(fork(tree, log, 3600, lambda: attempt(files, order, None)), 0)
    return sorted(set(re.findall(r"^FAILED (\S+\.py::.+?)(?: - .*)?$", log.read_text(), re.M)) & set(names))


def start(mutant: Mutant, slot: int, tests: dict[str, dict[str, Any]], trees: list[Path]) -> tuple[int, Job]:
    """Write a change into a tree and start its tests: those that run the line first, the quickest first."""
    module = module_of(mutant.file)
    files = files_of(module)
    mine = {name: t for name, t in tests.items() if name.split("::")[0] in files and t["good"]}
    source = (ROOT / mutant.file).read_bytes()
    runs: set[str] = set()
    if function := function_at(source, mutant.line):
        runs = {name for name, t in mine.items() if f"{mutant.file}::{function}" in t["runs"]}
        near = {name.split("::")[0] for name in runs} - {f"tests/test_{EVERYWHERE}.py"}
        mine = {n: t for n, t in mine.items() if n in runs or n.split("::")[0] in near} or mine
    ranks = sorted(mine, key=lambda n: (n not in runs, mine[n]["seconds"]))
    write(trees[slot] / mutant.file, source[: mutant.start] + mutant.new + source[mutant.end :])
    seconds = 5 + 3 * sum(t["seconds"] for t in mine.values())
    log = trees[slot].with_suffix(".log")
    order = {name: i for i, name in enumerate(ranks)}
    left_out = tests.keys() - mine.keys()
    files = sorted({name.split("::")[0] for name in mine})
    pid = fork(trees[slot], log, seconds, lambda: attempt(files, order, left_out))
    return pid, Job(mutant, slot, log, time.monotonic() + 10 * seconds)


def files_of(module: str) -> list[str]:
    """The test files of a module."""
    return [f"tests/test_{name}.py" for name in f"{TESTS[module]} {EVERYWHERE}".split()]


def function_at(source: bytes, line: int) -> str | None:
    """Name of the innermost function whose body a line is in, as in ``Class.method``; None where it runs on import."""
    return functions(source).get(line)


@cache
def functions(source: bytes) -> dict[int, str]:
    """Name of the function of each line that runs when a function is called, and not when the module is imported."""
    found: dict[int, str] = {}

    def walk(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{name}{child.name}."
                if not isinstance(child, ast.ClassDef):
                    lines = range(child.body[0].lineno, (child.end_lineno or child.lineno) + 1)
                    found.update(dict.fromkeys(lines, inner[:-1]))
                    inner += "<locals>."
            walk(child, inner)

    walk(ast.parse(source), "")
    return found


def write(path: Path, source: bytes) -> None:
    """Replace a module, and what Python has compiled of it: two versions of one length within one second look alike."""
    path.write_bytes(source)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


# --- the report -----------------------------------------------------------------------------------------------------


def known() -> dict[tuple[str, str, str], str]:
    """Changes that are known to change nothing, with their reasons."""
    entries = tomllib.loads(EQUIVALENT.read_text("utf8")).get("equivalent", []) if EQUIVALENT.exists() else []
    return {(e["file"], e["was"], e["now"]): e["why"] for e in entries}


def shown(mutant: Mutant) -> str:
    return f"{mutant.file}:{mutant.line}\n  - {mutant.was}\n  + {mutant.now}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=200, help="changes to draw; 0 for one at every place")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="changes tried at a time")
    parser.add_argument("--only", default="", help="parts of names, e.g. 'partition theory/flic:380-450'")
    given = parser.parse_args()
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    begin = time.monotonic()
    shared = ROOT.parent / "shared" / "data"
    if "HETFL_DATA" not in os.environ and shared.is_dir():
        os.environ["HETFL_DATA"] = str(shared)
    for name in PRELOAD.split():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # else each fork's garbage collection copies all of that
    drawn = draw(given.n, given.seed, given.only.split())
    same = known()
    equivalent, trial = [m for m in drawn if m.key in same], [m for m in drawn if m.key not in same]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = [make_tree(Path(folder) / f"tree{i}") for i in range(max(1, given.jobs))]
        files = sorted({f for m in trial for f in files_of(module_of(m.file))})
        tests = baseline(files, trees[0], given.jobs)
        for name in sorted(n for n, t in tests.items() if not t["good"]):
            print(f"left out, it fails unchanged: {name}")
        print(f"{len(drawn)} changes, {len(equivalent)} of them known to be equivalent", flush=True)
        done = 0

        def report(mutant: Mutant, verdict: str) -> None:
            nonlocal done
            done += 1
            if verdict != "killed":
                print(f"[{done}/{len(trial)}, {time.monotonic() - begin:.0f} s] {verdict}: {shown(mutant)}", flush=True)

        verdicts, by = try_all(trial, tests, trees, report)
        red = fails_unchanged(by, trees[0])
        if red:
            raise SystemExit(f"these fail on the core as it is, so that nothing they notice counts: {', '.join(red)}")
    survived = [m for m, verdict in verdicts.items() if verdict == "survived"]
    late = sum(verdict == "too long" for verdict in verdicts.values())
    share = 1 - len(survived) / max(len(trial), 1)
    print(f"\nknown to be equivalent: {len(equivalent)}")
    for m in sorted(equivalent, key=lambda m: m.key):
        print(f"{shown(m)}\n  {same[m.key]}")
    print(f"\nnot noticed: {len(survived)}")
    for m in sorted(survived, key=lambda m: m.key):
        print(shown(m))
    print(
        f"\ndrawn {len(drawn)}, equivalent {len(equivalent)}, noticed {len(trial) - len(survived)} of {len(trial)} "
        f"({share:.1%}; {late} of them by running too long), {time.monotonic() - begin:.0f} s"
    )
    return 0 if share >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
