"""What few hand-ins do, read from their source, mostly for honest reasons: for a human to look at; it changes no mark."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator

MAX_SIGNS = 8

CALLS = {
    "processes": r"os\.(fork|forkpty|setsid|system|popen|kill|killpg|_exit|abort|exec\w*|spawn\w*|posix_spawn\w*|daemon)",
    "the inside of Python": r"gc\.get_\w+|sys\.(_getframe|settrace|setprofile|_current_frames)|inspect\.(currentframe|stack)"
    r"|importlib\.reload|threading\.(settrace|setprofile)",
    "code that it makes up": r"exec|eval|compile|__import__|marshal\.loads|pickle\.loads|dill\.loads",
    "files of others": r"shutil\.(rmtree|move)|os\.(remove|unlink|rmdir|removedirs|chmod|rename|replace|symlink|link|close|closerange|dup2)",
    "replacing": r"(unittest\.)?(mock\.)?patch(\.object|\.dict|\.multiple)?",
    "signals": r"signal\.\w+",
}
MODULES = {
    "ctypes",
    "subprocess",
    "multiprocessing",
    "signal",
    "socket",
    "requests",
    "urllib",
    "http",
    "pty",
    "cffi",
    "gc",
}
TEXTS = re.compile(
    r"/proc/|/dev/(sd|vd|nvme|mem)|autograder|answer\.json|grades\.csv|results\.(pkl|json)|/solution/|start_new_session|site-packages"
)
FOREIGN = {"bash", "sh", "script", "system", "sx", "!", "perl", "ruby", "writefile", "file"}
"""Cells in other languages, and cells that become files."""

OWN = re.compile(r"torch\.backends|\.options\.|\.rcParams|\.random\.")
"""Settings that libraries ask one to make by assignment."""

COMPARISONS = re.compile(r"__(eq|ne|lt|le|gt|ge|bool|getattribute|array_ufunc|array_function|torch_function)__")


def signs_of(cells: dict[int, str]) -> list[str]:
    """What is unusual in the cells, each with the number of its cell among all code cells."""
    trees = {number: _parse(cell) for number, cell in cells.items()}
    aliases: dict[str, str] = {"builtins": "builtins", "__builtins__": "builtins"}
    for tree in filter(None, trees.values()):
        aliases |= dict(_imports(tree))
    found: dict[str, None] = {}
    for number, tree in trees.items():
        said = _signs_in_tree(tree, aliases) if tree else _signs_in_text(cells[number])
        found |= dict.fromkeys(f"cell {number}: {sign}" for sign in said)
    signs = list(found)
    more = [f"and {len(signs) - MAX_SIGNS} more"] if len(signs) > MAX_SIGNS else []
    return signs[:MAX_SIGNS] + more


def _parse(cell: str) -> ast.AST | None:
    """The syntax tree of a cell, with the commands of notebooks made functions; nothing where it has an error."""
    from IPython.core.inputtransformer2 import TransformerManager

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(TransformerManager().transform_cell(cell))
        except Exception:
            return None


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Names that stand for modules, or for what comes out of them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield (name.asname or name.name.split(".")[0], name.name if name.asname else name.name.split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                yield (name.asname or name.name, f"{node.module or ''}.{name.name}")


def _path(node: ast.AST, aliases: dict[str, str]) -> str:
    """The full name of ``np.linalg.norm`` and the like; empty where it does not begin with a module."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    if parts and node.id not in aliases:
        return ""
    return ".".join([aliases.get(node.id, node.id), *reversed(parts)])


def _signs_in_tree(tree: ast.AST, aliases: dict[str, str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            yield from _signs_of_target(node, aliases)
        elif isinstance(node, ast.Call):
            yield from _signs_of_call(node, aliases)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
            yield from (
                f"imports {name}" for name in names if name.split(".")[0] in MODULES or name.startswith("otter.")
            )
        elif isinstance(node, ast.ClassDef):
            names = [n.name if isinstance(n, ast.FunctionDef) else getattr(n, "id", "") for n in ast.walk(node)]
            own = filter(COMPARISONS.fullmatch, names)
            yield from (f"a class of its own says what {name} means" for name in own)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 2000:
            match = TEXTS.search(node.value)
            if match:
                yield f"names {match.group()}"


def _signs_of_target(node: ast.Attribute | ast.Subscript, aliases: dict[str, str]) -> Iterator[str]:
    """Assignments into modules and into the tables of the interpreter."""
    if isinstance(node, ast.Attribute):
        path = _path(node, aliases)
        if path and not OWN.search(path):
            yield f"replaces {path}"
        return
    path = _path(node.value, aliases)
    if path == "sys.modules" or path.endswith(".__dict__") or path == "builtins":
        yield f"writes into {path}"
    elif isinstance(node.value, ast.Call) and _path(node.value.func, aliases) == "vars" and node.value.args:
        yield "writes into vars(...)"


def _signs_of_call(node: ast.Call, aliases: dict[str, str]) -> Iterator[str]:
    path = _path(node.func, aliases)
    if path in ("setattr", "delattr") and node.args and _path(node.args[0], aliases).split(".")[0] in aliases.values():
        yield f"{path} on {_path(node.args[0], aliases)}"
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("system", "getoutput") and not path:
        yield "calls a command of the shell"
    if (
        isinstance(node.func, ast.Attribute)
        and node.func.attr == "run_cell_magic"
        and isinstance(node.args[0], ast.Constant)
    ):
        yield from (f"a cell of %%{name}" for name in [node.args[0].value] if name in FOREIGN)
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("rglob", "iglob", "walk", "scandir"):
        yield f"looks through folders: {node.func.attr}"
    for what, pattern in CALLS.items():
        if path and re.fullmatch(pattern, path):
            yield f"{what}: {path}"


def _signs_in_text(cell: str) -> Iterator[str]:
    """Signs in a cell that is not Python."""
    match = TEXTS.search(cell)
    if match:
        yield f"names {match.group()}"
