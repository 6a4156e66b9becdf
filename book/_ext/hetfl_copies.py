"""Copies of notebooks that run elsewhere: the build puts a cell into them that installs both packages.

A notebook of Part I begins with its picture. Opened in a clone it finds `hetfl_core`; in Colab, or from the download
button, it has to install it first. So the copies of notebooks that lie beside the pages get an install cell below
their titles, if they have none. The download button leads to these copies, and Colab opens them on a branch of the
repository (`COPIES`), which holds nothing else.

Run as a script (``make copies``, for whoever publishes), it puts the copies of the last build onto that branch. That
needs git and Python alone, hence the imports within functions.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

COPIES = "notebooks"
"""Branch with the copies, at its top."""

INSTALL = '''\
# In Colab this installs the library; if it is installed already, nothing happens.
import importlib.util

# `make address` writes the public address of the repository here:
REPOSITORY = ""
if importlib.util.find_spec("hetfl_book") is None:
    if not REPOSITORY:
        raise ModuleNotFoundError(
            "no hetfl_book: run `pip install . ./book` in a clone, restart the kernel"
        )
    %pip install --quiet "hetfl-core @ git+{REPOSITORY}" "hetfl-book @ git+{REPOSITORY}#subdirectory=book"'''


def with_install(text: str, address: str) -> str:
    """A notebook whose first cell of code installs both packages from an address; where there is one it stays."""
    notebook = json.loads(text)
    if any("REPOSITORY = " in "".join(cell["source"]) for cell in notebook["cells"]):
        return text
    source = INSTALL.replace('REPOSITORY = ""', f'REPOSITORY = "{address}"')
    cell = {"cell_type": "code", "id": "install", "metadata": {}, "execution_count": None, "outputs": []}
    notebook["cells"].insert(1, cell | {"source": source.splitlines(keepends=True)})
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def write_copies(app: Any, failed: Exception | None) -> None:
    """Put the cell into the copies beside the pages."""
    if failed or app.builder.format != "html":
        return
    import hetfl_site

    address = hetfl_site.repository()
    for path in copies(Path(app.outdir)):
        before = path.read_text("utf8")
        after = with_install(before, address)
        if after != before:
            path.write_text(after, "utf8")


def copies(html: Path) -> list[Path]:
    """The copies of notebooks in a built book."""
    return sorted((html / "_sources").rglob("*.ipynb"))


def open_copies(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Lead the button of Colab to the copy; that of Binder, which installs the repository, to the notebook itself."""
    import hetfl_site

    here, there = f"/blob/{hetfl_site.BRANCH}/book/", f"/blob/{COPIES}/"
    for group in context.get("header_buttons") or ():
        for button in group.get("buttons") or ():
            if isinstance(button, dict) and button.get("text") == "Colab":
                button["url"] = button["url"].replace(here, there)


def publish(html: Path, root: Path, remote: str = "origin") -> None:
    """Commit the copies, alone, and push them onto their branch, whose history is not kept.

    Raises
    ------
    FileNotFoundError
        If the book was not built.
    """
    folder, found = html / "_sources", copies(html)
    if not found:
        raise FileNotFoundError(f"there are no notebooks in {folder}: run 'make book' first")
    ask = ["git", "-C", str(root), "rev-parse", "--absolute-git-dir"]
    known = {"GIT_DIR": subprocess.check_output(ask, text=True).strip(), "GIT_WORK_TREE": str(folder)}
    with tempfile.TemporaryDirectory() as place:
        who = {f"GIT_{role}_{what}": "book" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        settings = os.environ | known | who | {"GIT_INDEX_FILE": str(Path(place) / "index")}

        def git(*words: str) -> str:
            done = subprocess.run(["git", *words], env=settings, cwd=folder, check=True, capture_output=True, text=True)
            return done.stdout.strip()

        git("add", "--force", "--", *(path.relative_to(folder).as_posix() for path in found))
        commit = git(
            "commit-tree", git("write-tree"), "-m", "Notebooks of the book, with a cell that installs both packages"
        )
        git("push", "--quiet", "--force", remote, f"{commit}:refs/heads/{COPIES}")
    print(f"{len(found)} notebooks on the branch {COPIES!r}")


def setup(app: Any) -> dict[str, bool]:
    """Connect both: the button after the theme has made it, the copies once they are there."""
    app.connect("html-page-context", open_copies, priority=600)
    app.connect("build-finished", write_copies)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    publish(ROOT / "book" / "_build" / "html", ROOT)
