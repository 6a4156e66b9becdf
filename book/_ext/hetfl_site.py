"""What the book asks of Sphinx beyond `_config.yml`.

- The repository's public address stands once, in ``pyproject.toml``; buttons and pages get it from there, or from the
  checkout's remote. Where neither is known there is no button.
- Notebooks compute with the instructions that records are made with, on whatever CPU.
- Figures have two pixels a point, for the screens of today.
- Results in the cache are forgotten when the core, its records, the instructions or the data at hand have changed.
- The status page says what the copy was made with.

Run as a script (``make address``), it writes the address where files outside the book must repeat it.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import platform
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from docutils import nodes

from hetfl_core import numerics

ROOT = Path(__file__).resolve().parents[2]
BRANCH = "main"


# --- the address ------------------------------------------------------------------------------------------------


def repository() -> str:
    """The public address of the repository: that of `setting`, or else of the checkout's remote; "" if none is known."""
    return setting() or public(remote())


def setting() -> str:
    """``project.urls.Repository`` of pyproject.toml, "" where it is not set.

    Raises
    ------
    ValueError
        If it is no address that a browser opens.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]
    address = project.get("urls", {}).get("Repository", "").rstrip("/")
    if address and not re.fullmatch(r"https://[\w.-]+\.\w+(/[\w.~-]+)+", address):
        raise ValueError(f"project.urls.Repository must look like https://host/owner/name, got {address!r}")
    return address


def remote() -> str:
    """The remote ``origin`` of the checkout, as git has it; "" without git or a remote."""
    if not (ROOT / ".git").exists():
        return ""  # a plain copy, perhaps within somebody else's checkout
    try:
        command = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def public(remote: str) -> str:
    """The address under which a browser finds a remote on GitHub or GitLab; "" for a folder or any other machine.

    Names and passwords in a remote are left out. Whether the repository is open to all cannot be seen here.
    """
    places = r"(?:https?://(?:[^@/]*@)?|ssh://git@|git@)(github\.com|gitlab\.com)[/:]([\w.-]+(?:/[\w.-]+)+)"
    match = re.fullmatch(places, remote.rstrip("/").removesuffix(".git"))
    return f"https://{match[1]}/{match[2]}" if match else ""


def set_address(app: Any, config: Any) -> None:
    """Point the launch, repository and issue buttons at the repository, or leave out those that would lead nowhere.

    Pages say by ``{only} launch`` what there is to say of launch buttons.
    """
    address = repository()
    known = address.startswith(("https://github.com/", "https://gitlab.com/"))  # those the theme knows its way around
    launch = address.startswith("https://github.com/")  # the only one that Colab opens
    config.html_theme_options |= {
        "repository_url": address if known else "",
        "repository_branch": BRANCH,
        "path_to_docs": "book",
        "use_repository_button": known,
        "use_issues_button": known,
        "use_source_button": False,
        "use_edit_page_button": False,
    }
    if launch:
        app.tags.add("launch")
    else:
        config.html_theme_options["launch_buttons"] = {}


def fill_in(app: Any, docname: str, source: list[str]) -> None:
    """Replace the book's own placeholders in a page, in code blocks too."""
    if app.env.doc2path(docname).endswith(".md"):
        address = repository()
        source[0] = source[0].replace("{{ clone }}", clone(address)).replace("{{ report }}", report(address))
        for name, filled in FILLED.items():
            if f"{{{{ {name} }}}}" in source[0]:
                source[0] = source[0].replace(f"{{{{ {name} }}}}", filled())
        source[0] = re.sub(r"\{\{ minutes ([\w-]+) \}\}", lambda chapter: minutes(chapter[1]), source[0])


def clone(address: str) -> str:
    """How one gets to a clone, as the sentence before the commands that are typed there."""
    return f"After `git clone {address}`, in its folder:" if address else "In a clone of this repository:"


def report(address: str) -> str:
    """Where a fault is reported, as a piece of a sentence."""
    return f"open an issue at <{address}/issues>" if address else "report it where you got this book"


def in_readme(text: str, address: str) -> str:
    """README.md with the address, or without."""
    return re.sub(r"(?<=<!-- clone -->).*?(?=<!-- /clone -->)", clone(address), text)


def in_citation(text: str, address: str) -> str:
    """CITATION.cff with the address, or without."""
    line = f'repository-code: "{address}"\n' if address else ""
    return re.sub(r"^(license: .*\n)(?:repository-code: .*\n)?", rf"\g<1>{line}", text, flags=re.MULTILINE)


def in_notebook(text: str, address: str) -> str:
    """A notebook with the address in its install cell, or without; a master of an assignment asks for it too.

    Without an address a master must not ask for the bare name: anybody could register it on a package index.
    """
    text = re.sub(r'(?<="REPOSITORY = \\")[^"\\]*(?=\\")', address, text)
    wanted = [f"hetfl-core @ git+{address}", f"hetfl-book @ git+{address}#subdirectory=book"] if address else []
    line = "".join(rf'    "  - {each}\\n",\n' for each in wanted)
    last = r'^(    "  - matplotlib\\n",\n)(?:    "  - hetfl-\w+ @ git\+.*\n)*'
    return re.sub(last, rf"\g<1>{line}", text, flags=re.MULTILINE)


PLACES: dict[str, Callable[[str, str], str]] = {
    "README.md": in_readme,
    "CITATION.cff": in_citation,
    "book/**/*.ipynb": in_notebook,
}
"""Where the address is repeated because nothing could fill it in there, and what writes it."""


def repeated() -> list[tuple[Path, Callable[[str, str], str]]]:
    """Every file of `PLACES`, with what writes the address into it."""
    made = {"_build", "dist", ".ipynb_checkpoints"}
    return [
        (path, write) for glob, write in PLACES.items() for path in sorted(ROOT.glob(glob)) if not made & {*path.parts}
    ]


def write_address() -> None:
    """Write the address into `PLACES`, or take it out where none is known."""
    address = repository()
    for path, write in repeated():
        before = path.read_text("utf8")
        after = write(before, address)
        if after != before:
            path.write_text(after, "utf8")
            print(f"{path.relative_to(ROOT)}: now {address or 'without an address'}")


# --- kernels ----------------------------------------------------------------------------------------------------


KERNEL = """c = get_config()  # noqa: F821
c.InlineBackend.figure_formats = {"retina"}
"""
"""Settings of the kernels that execute the book's notebooks: figures with two pixels a point."""


def set_kernels() -> None:
    """Hand `KERNEL` to the kernels, which inherit this process's environment, in a folder that holds nothing else."""
    profile = ROOT / "book" / "_build" / "ipython" / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipython_kernel_config.py").write_text(KERNEL, "utf8")
    os.environ["IPYTHONDIR"] = str(profile.parent)


# --- scripts ----------------------------------------------------------------------------------------------------


def drop_scripts(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Leave out what the theme adds for live cells in the page, which the book does not have, and what comes twice."""
    scripts: dict[str, Any] = {}
    for script in context["script_files"]:
        key = str(getattr(script, "filename", None) or getattr(script, "attributes", {}).get("body") or script)
        if "thebe" not in key.lower():
            scripts.setdefault(key.rsplit("_static/")[-1], script)
    context["script_files"] = list(scripts.values())


# --- the front page, and what this copy was made with -------------------------------------------------------------

PACKAGES = ("matplotlib", "mne", "pyriemann", "moabb", "flwr", "jupyter-book")
"""Shown besides those that records name."""


ANSWERS = [
    (
        "flic",
        "clients with different inputs, brought to common anchors (FLIC-HL)",
        ("FLIC-HL", "Local", "accuracy"),
        "each client's own network, alone",
        ("bci-common40", "femnist-50", "toy-noisy", "toy-linear", "digits-b100-c3", "digits-dealt-b100-c3"),
    ),
    (
        "fedcr",
        "random features, pulled together",
        ("FedCR", "FedAvg-FT", "accuracy"),
        "FedAvg whose head every client fine-tunes",
        ("own-non-iid_1", "own-non-iid_2"),
    ),
    (
        "fedcma",
        "one common mean for each class",
        ("Fed-CMA", "Local", "accuracy"),
        "each client's own network, alone",
        (*(f"mnist-alpha-{alpha}" for alpha in ("0.02", "0.03", "0.05", "0.1")), "femnist", "cifar10-reduced-10"),
    ),
    (
        "hyfem",
        "a server's model of all blocks of features",
        ("HyFEM", "FedAvg, zeros", "server_accuracy"),
        "FedAvg with zeros for missing blocks",
        ("quadrants", "quadrants-mnist", "quadrants-cifar10", "colours-cifar10", "4-views", "views", "eeg"),
    ),
]
"""Chapter, what it is about, its method, a plain rival, the metric; the rival in words; experiments, one per setting."""


def answers() -> list[dict[str, Any]]:
    """For each paper in how many settings its method is better or worse than a plain rival in our runs."""
    ledger, results, statistics = (
        importlib.import_module(name)
        for name in ("hetfl_book.ledger", "hetfl_book.ledger.results", "hetfl_core.statistics")
    )
    stored, rows = ledger.load(scale="paper"), []
    for chapter, what, (method, rival, metric), plain, settings in ANSWERS:
        pairs = {e: results.pair(stored, f"{chapter}/{e}", method, rival, metric) for e in settings}
        found = ledger.corrected(statistics.as_table({e: pair for e, pair in pairs.items() if pair is not None}))
        better, worse = (int((found["finding"] & (sign * found["mean"] > 0)).sum()) for sign in (1, -1))
        name = ledger.SOURCES[chapter].partition(" (")[0]
        row = {"method": f"[{name}]({chapter}.ipynb), {what}", "in its place": plain, "settings": len(found)}
        rows.append(row | {"better": better, "worse": worse, "cannot tell": len(found) - better - worse})
    return rows


def answers_table() -> str:
    """`answers`, as Markdown."""
    return in_markdown(answers())


def tally_table() -> str:
    """What the ledger amounts to, a row for each paper."""
    ledger, experiments = (importlib.import_module(f"hetfl_book.{name}") for name in ("ledger", "experiments"))
    words = importlib.import_module("hetfl_book.notebook").counted_verdicts
    known = experiments.known()
    numbers, claims = ledger.numbers(known=known), ledger.claims(known=known)
    rows = []
    for paper in [paper for paper in ledger.SOURCES if paper in {*numbers["paper"], *claims["paper"]}]:
        n = ledger.tally(numbers[numbers["paper"] == paper], claims[claims["paper"] == paper])
        ran, judged = sum(n.judged.values()), sum(n.corrected.values())
        told = (
            (f"{count} of {of}: {words(verdicts)}" if count else f"none of {of} yet")
            if of
            else "none, its results are in figures"
            for count, of, verdicts in ((ran, n.numbers, n.judged), (judged, n.claims, n.corrected))
        )
        heads = ("paper", "its numbers, run again", "its claims, judged by our runs")
        rows.append(dict(zip(heads, (ledger.SOURCES.get(paper, paper), *told), strict=True)))
    return in_markdown(rows)


def in_markdown(rows: list[dict[str, Any]]) -> str:
    """A table, as the pages of the benchmark write theirs."""
    table = importlib.import_module("pandas").DataFrame(rows).astype(str)
    return str(importlib.import_module("hetfl_book.headtohead.figures").markdown(table))


def edition() -> str:
    """Version, authors and licence of CITATION.cff, how to cite, and the repository where it is known."""
    text = (ROOT / "CITATION.cff").read_text("utf8")
    told = dict(re.findall(r"^(version|license): (.+)$", text, re.MULTILINE))
    authors = " and ".join(re.findall(r"^  - name: (.+)$", text, re.MULTILINE))
    address = repository()
    parts = [f"Version {told['version']}", authors, f"{told['license']} licence", "[how to cite](bibliography.md)"]
    return " · ".join([*parts, *([f"[repository]({address})"] if address else [])])


def minutes(chapter: str) -> str:
    """How long a chapter takes to read: by its metadata, else as its text says itself."""
    text = (ROOT / "book" / f"{chapter}.ipynb").read_text("utf8")
    found = re.search(r"\*\*What it takes\.\*\* (\d+) minutes", text) or re.search(r'^  "minutes": (\d+)', text, re.M)
    if not found:
        raise ValueError(f"book/{chapter}.ipynb: expected minutes in its metadata, or **What it takes.** and a number")
    return found[1]


def made_table() -> str:
    """Source of a table: commit, versions, machine, and which of the registry's data are here."""
    made = importlib.import_module("hetfl_core.records").environment()
    versions = made["versions"] | {name: version(name) for name in PACKAGES}
    machine, commit = made["hardware"], made["commit"]
    rows = {
        "commit": f"`{commit[:12]}`" + (", with changes that are not committed" if made["dirty"] else ""),
        "built": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "machine": f"{machine['cpu']}, {machine['cores']} cores, {machine['gpu'] or 'no GPU'}, {platform.system()}",
        "instructions": ", ".join(f"{name} {value}" for name, value in made["numerics"].items()),
        **data_in_words(),
    }
    return "\n".join(["| item | this copy |", "|---|---|", *(f"| {name} | {words} |" for name, words in rows.items())])


FILLED: dict[str, Callable[[], str]] = {
    "answers": answers_table,
    "tally": tally_table,
    "made": made_table,
    "edition": edition,
}
"""What fills a placeholder such as ``{{ tally }}``."""


def version(name: str) -> str:
    """Version of a package, or that it is not there."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def data_in_words() -> dict[str, str]:
    """Which data sets of the registry are here whole, in part, and not at all."""
    files = importlib.import_module("hetfl_core.datasets.registry").status()
    share = files.groupby(files["key"].str.rpartition("/")[0], sort=False)["ok"].agg(["sum", "size"])
    here = [name for name, n in share.iterrows() if n["sum"] == n["size"]]
    some = [f"{name} ({n['sum']} of {n['size']} files)" for name, n in share.iterrows() if 0 < n["sum"] < n["size"]]
    none = [name for name, n in share.iterrows() if not n["sum"]]
    found = {"data at hand": here, "data at hand in part": some, "data not at hand": none}
    return {what: ", ".join(names) or "none" for what, names in found.items()}


# --- the cache of executed notebooks ----------------------------------------------------------------------------


def inputs_digest() -> str:
    """Digest of all that a chapter's numbers depend on but its own text: core, records, versions, instructions, data."""
    digest = hashlib.sha256((data_at_hand() + repr(numerics.hold(environment=os.environ)) + KERNEL).encode())
    files = [
        *ROOT.glob("hetfl_core/**/*.py"),
        *ROOT.glob("hetfl_core/*.mplstyle"),
        *ROOT.glob("book/hetfl_book/**/*.py"),
        *ROOT.glob("data/**/*.*"),
        ROOT / "constraints.txt",
    ]
    for path in sorted(p for p in files if p.is_file()):
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def data_at_hand() -> str:
    """Which of the files of the registry are there, with the right hash."""
    registry = importlib.import_module("hetfl_core.datasets.registry")
    return registry.status()[["key", "ok"]].to_csv()


def forget_stale_results(app: Any, config: Any) -> None:
    """Empty the cache where its results come from other code or data than the present.

    With HETFL_KEEP_RESULTS=1 they stay, for those who edit prose while the core is being worked on.
    """
    if os.environ.get("HETFL_KEEP_RESULTS"):
        return
    cache = Path(config.nb_execution_cache_path or Path(app.outdir).parent / ".jupyter_cache")
    stamp, digest = cache / "hetfl-inputs.sha256", inputs_digest()
    if not stamp.exists() or stamp.read_text() != digest:
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir(parents=True)
        stamp.write_text(digest)


def words_for_marks(app: Any, doctree: nodes.document, docname: str) -> None:
    """Say "done" on the status page, where not every reader's fonts have the tick."""
    for text in list(doctree.findall(nodes.Text)) if docname == "status" else []:
        if text.strip() in MARKS:
            text.parent.replace(text, nodes.Text(MARKS[text.strip()]))


MARKS = {"✅": "done", "❌": "failed"}


def setup(app: Any) -> dict[str, bool]:
    """Hold the kernels, which inherit this process's environment, to the portable instructions; connect the rest."""
    numerics.hold(environment=os.environ)
    set_kernels()
    app.connect("config-inited", set_address)
    app.connect("config-inited", forget_stale_results)
    app.connect("doctree-resolved", words_for_marks, priority=900)
    app.connect("source-read", fill_in)
    app.connect("html-page-context", drop_scripts, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    write_address()
