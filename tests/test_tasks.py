"""The page of tasks, block by block as it stands there, each with no other's names and in an empty folder."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from forked import Forked
from typer.testing import CliRunner

from hetfl_core import cli

pytestmark = pytest.mark.nightly

PAGE = Path(__file__).resolve().parents[1] / "book" / "tasks.md"
PICTURE = PAGE.parent / "_static" / "tasks-latent.png"
FENCE = re.compile(
    r"^```(?:\{code-block\} )?(?P<language>\w+)\n(?::caption: (?P<file>\S+)\n\n)?(?P<code>.*?)^```$", re.S | re.M
)
SECTIONS = {
    title: body
    for title, body in re.findall(r"^\((task-\w+)\)=\n(.*?)(?=^\(task-|\Z)", PAGE.read_text("utf8"), re.S | re.M)
}


def pasted(code: str) -> str:
    """What Python code prints that finds nothing but what it imports itself."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), matplotlib.rc_context({"backend": "agg"}):
        exec(compile(code, str(PAGE), "exec"), {"__name__": "__main__"})
    return printed.getvalue()


def alike(shown: str, printed: str) -> bool:
    """Whether a word of the page is what was printed: `…` stands for any word, and numbers may differ a little.

    Training amplifies the last bit, in which machines differ.
    """
    if shown in ("…", printed):
        return True
    try:
        a, b = (float(word.strip("[],")) for word in (shown, printed))
    except ValueError:
        return False
    return "." in shown and abs(a - b) <= 0.05 + 0.1 * abs(a)


def is_shown(page: str, printed: str) -> bool:
    """Whether the page shows what was printed, line by line and word by word."""
    lines = [[line.split() for line in text.splitlines() if line.split()] for text in (page, printed)]
    return len(lines[0]) == len(lines[1]) and all(
        len(shown) == len(found) and all(map(alike, shown, found)) for shown, found in zip(*lines, strict=True)
    )


def command(*arguments: str) -> str:
    """What the command prints, here, where all is imported that it needs."""
    with matplotlib.rc_context({"backend": "agg"}):
        done = CliRunner().invoke(cli.app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output[-3000:]
    return done.stdout


def command_elsewhere(folder: Path, *arguments: str) -> str:
    """What the command prints in a process of its own, which does not look for modules where it is started."""
    assert not {"", ".", str(folder)} & {*sys.path}
    done = Forked(folder, *arguments)
    stdout, stderr = done.communicate(timeout=600)
    assert done.returncode == 0, stderr[-3000:]
    return stdout


def test_the_page_has_nine_tasks() -> None:
    names = ["tables", "federation", "recordings", "compare", "use", "resume", "follow", "embed", "own"]
    assert list(SECTIONS) == [f"task-{name}" for name in names]


class Told:
    """Stands for TensorBoard and for MLflow, which tests do not need: it takes what their functions take."""

    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []

    def SummaryWriter(self, log_dir: str) -> Told:
        return self

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.scalars.append((tag, float(scalar_value), global_step))

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.scalars += [(name, float(value), step) for name, value in metrics.items()]


@pytest.fixture
def boards(monkeypatch) -> list[Told]:
    found = [Told(), Told()]
    for name, told in zip(("torch.utils.tensorboard", "mlflow"), found, strict=True):
        monkeypatch.setitem(sys.modules, name, told)
    return found


@pytest.mark.parametrize("section", list(SECTIONS))
def test_what_a_reader_pastes_runs(section: str, tmp_path: Path, monkeypatch, boards: list[Told]) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = list(FENCE.finditer(SECTIONS[section]))
    assert blocks, "the section has code"
    printed = []
    for block in blocks:
        if block["file"]:
            (tmp_path / block["file"]).write_text(block["code"])
        elif block["language"] == "text":
            assert is_shown(block["code"], printed[-1]), f"{PAGE.name} should show:\n{printed[-1]}"
        elif block["language"] == "python":
            printed.append(pasted(block["code"]))
        else:
            program, *arguments = shlex.split(block["code"])
            assert program == "hetfl"
            own_module = any(other["file"] for other in blocks)
            printed.append(command_elsewhere(tmp_path, *arguments) if own_module else command(*arguments))
    shown = sum(block["language"] == "text" for block in blocks)
    assert shown == sum(map(bool, printed)), "what a program prints stands below it"
    check(section, printed, tmp_path)
    for told in boards:
        rounds = [step for tag, _, step in told.scalars if tag == "accuracy"]
        assert rounds == ([1, 2, 3] if section == "task-follow" else [])


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("FLIC 95.66 … NaN", "FLIC  95.70 0.31 NaN", True),
        ("FLIC 95.66", "FLIC 80.12", False),
        ("[0.12, 0.98]", "[0.13, 0.97]", True),
        ("13", "14", False),
        ("10,400", "10,404", False),
        ("one", "one two", False),
        ("one\n\ntwo", "one\ntwo  \n", True),
        ("one", "one\ntwo", False),
    ],
)
def test_page_and_print_are_compared(shown: str, printed: str, same: bool) -> None:
    assert is_shown(shown, printed) == same


def picture(path: Path) -> tuple[tuple[int, ...], np.ndarray]:
    """Size of a picture, and how dark it is in each field of a grid of 8 by 8, relative to the darkest."""
    dark = 1 - matplotlib.image.imread(path)[..., :3].mean(axis=2)
    grid = np.array([[part.mean() for part in np.array_split(row, 8, axis=1)] for row in np.array_split(dark, 8)])
    return dark.shape, grid / grid.max()


def check(section: str, printed: list[str], folder: Path) -> None:
    """What the page says of the result."""
    if section == "task-tables":
        assert "Stay alone, and use logistic regression: nothing else is shown to be better" in printed[1]
        shown = (folder / "report.html").read_text("utf8")
        assert "Learning together does no better than the best way to stay alone" in shown, "as the picture says"
        assert "<b>Zurich</b> has only 2 test rows" in shown
        assert "--method logistic --save model" in shown
    elif section == "task-federation":
        assert re.search(r"Porto\s+11 ", printed[0])
        assert re.search(r"Lyon\s+13 ", printed[0])
        assert "chol" not in printed[1].split("('age'")[1].split(")")[0], "Zurich has no cholesterol"
        assert "'chol+fbs': (0,)" in printed[1]
        assert "['left', 'right']" in printed[2]
    elif section == "task-recordings":
        program = [block["code"] for block in FENCE.finditer(SECTIONS[section])][1]
        assert len(program.splitlines()) <= 12
        shares = [float(share) for share in re.findall(r"\S+$", printed[1].split("accuracy\n")[1], re.M)]
        assert shares[0] > 0.7, "Anna's trials can be told apart"
        assert abs(shares[1] - 0.5) < 2 * np.sqrt(0.25 / 48), "and Ben's not from chance"
    elif section == "task-compare":
        header, *rows = printed[0].splitlines()
        assert header.split() == ["mean", "sd", "difference", "low", "high", "p", "p_holm", "seeds", "diverged"]
        assert [row.split()[0] for row in rows] == ["method", "FLIC", "Local"]
        shared, own = (float(value) for value in re.findall(r"accuracy +FedAvg +([0-9.]+)", "".join(printed)))
        assert own > shared, "the threshold is put right"
    elif section == "task-use":
        assert {path.name for path in (folder / "model").iterdir()} == {"model.json", "tensors.safetensors"}
        from_files_to_an_answer = list(FENCE.finditer(SECTIONS[section]))[1]["code"]
        assert len(from_files_to_an_answer.splitlines()) <= 15, "the page calls it short"
    elif section == "task-follow":
        assert (folder / "rounds.csv").read_text().splitlines()[0] == "round,accuracy,auc"
    elif section == "task-resume":
        assert (folder / "my-run" / "state.safetensors").exists()
    elif section == "task-embed":
        sizes, pictures = zip(*(picture(path) for path in (folder / "latent.png", PICTURE)), strict=True)
        assert np.abs(np.subtract(*sizes)).max() <= 20, f"{PICTURE.name} is another picture: save latent.png there"
        assert np.abs(pictures[0] - pictures[1]).mean() < 0.1
    else:
        assert "accuracy" in printed[0]
