"""The list of runs that wait: what it may name, the order of the pending runs, and what pages say of it."""

import json
import re
from pathlib import Path

import pytest
from small import small_experiments

from hetfl_book import experiments, ledger, waiting
from hetfl_book.experiments import EXPERIMENTS, jobs, outdated, pending
from hetfl_book.headtohead.federations import FEDERATIONS
from hetfl_book.waiting import Line, queue

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"
LISTED = [(line, name) for line in queue() for name in line.experiments]
NAMES = [name for _, name in LISTED]


def test_what_is_listed_exists_or_is_to_be_defined():
    assert len(NAMES) == len(set(NAMES))
    for line, name in LISTED:
        assert (name in EXPERIMENTS) is not line.new, f"{name}: `new` stands where it is not defined, and only there"
        if not line.new:
            assert jobs(name, "paper", line.seeds, line.methods), "KeyError names a method that it does not have"
    for command in experiments.commands():
        known = re.fullmatch(r"hetfl headtohead --federations ([\w,-]+)", command)
        assert known, command
        assert set(known[1].split(",")) <= set(FEDERATIONS)


def test_what_has_all_its_runs_is_off_the_list():
    have = {r.relative_path for r in ledger.load() if not outdated(r)}
    for line, name in LISTED:
        if not line.new:
            lacking = [j for j in jobs(name, "paper", line.seeds, line.methods) if j.relative_path not in have]
            assert lacking, f"all runs of {name} are committed: take it off data/queue.toml"


def test_what_lacks_runs_is_listed(tmp_path):
    assert sorted({job.experiment for job in pending("paper", out=tmp_path)} - set(NAMES)) == []


def test_pending_follows_the_list_and_then_the_rest(tmp_path, monkeypatch):
    small_experiments(monkeypatch, tmp_path, {"a": {"priority": 1}, "b": {}, "c": {}}, seeds=1)
    lines = [
        Line("what c is", 1.0, ("tests/c",), ("FLIC-HL",), (3,)),
        Line("what is not there yet", 1.0, ("tests/d",), new=True),
        Line("others", 1.0, command="hetfl headtohead --federations heart"),
        Line("what b is", 1.0, ("tests/b",)),
    ]
    monkeypatch.setattr(waiting, "queue", lambda: lines)
    found = [(job.experiment[-1], job.method, job.seed) for job in pending("book", out=tmp_path)]
    both = ("Local", "FLIC-HL")
    assert found == [("c", "FLIC-HL", 3), *(("b", m, 0) for m in both), *((e, m, 0) for e in "ac" for m in both)]
    assert experiments.commands() == ["hetfl headtohead --federations heart"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[run", "no list of runs"),
        ("[queue]\n", "lists of \\[\\[run\\]\\] alone, got queue"),
        ("[[run]]\nexperiment = 'a'\nhours = 1\n", "run 1, cannot be read: decides"),
        ("[[run]]\nexperiment = 'a'\ndecides = 'b'\n", "run 1, cannot be read: hours"),
        ("[[run]]\nexperiment = 'a'\ndecides = 'b'\nhours = -1\n", "run 1, cannot be read: hours"),
        ("[[run]]\ndecides = 'b'\nhours = 1\n", "either experiments or a command"),
        ("[[run]]\nexperiment = 'a'\ncommand = 'c'\ndecides = 'b'\nhours = 1\n", "either experiments or a command"),
        ("[[run]]\nexperiment = 'a'\ndecides = 'b'\nhours = 1\nseeds = 0\n", "seeds"),
        ("[[run]]\nexperiment = 'a'\ndecides = 'b'\nhours = 1\nnew = 'yes'\n", "new must be"),
        ("[[run]]\nexperiments = 'a'\ndecides = 'b'\nhours = 1\n", "it has no key experiments: only command"),
    ],
)
def test_a_list_that_is_none_is_refused(tmp_path, text, message):
    (tmp_path / "queue.toml").write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        queue(tmp_path / "queue.toml")
    assert str(tmp_path / "queue.toml") in str(caught.value)


# --- pages ------------------------------------------------------------------------------------------------------------

WAITS = re.compile(
    r"\b(waits?|waiting|no (runs|records) yet|not (been |yet )?run|in the queue|unrun|to be run)\b", re.I
)
NAMED = re.compile(r"`((?:flic|fedcr|fedcma|hyfem|eeg|heart|privacy)/[\w.-]+…?)`")


def waiting_names(text: str) -> list[str]:
    """The experiments that are named in sentences which say that something waits."""
    sentences = re.split(r"(?<=[.!?;])\s+", text)
    return [name for sentence in sentences if WAITS.search(sentence) for name in NAMED.findall(sentence)]


def test_sentences_that_say_what_waits_are_found():
    text = "We ran `flic/a`. The rest waits (`flic/b-…`, `hyfem/c`). See `flic/d`. `flic/e` was not run; `flic/f` was."
    assert waiting_names(text) == ["flic/b-…", "hyfem/c", "flic/e"]


@pytest.mark.parametrize("page", sorted(p.name for p in BOOK.glob("*.ipynb")))
def test_a_page_says_waits_only_of_what_is_listed(page):
    cells = json.loads((BOOK / page).read_text("utf8"))["cells"]
    for name in waiting_names("\n\n".join("".join(cell["source"]) for cell in cells)):
        start = name.removesuffix("…")
        assert any(listed == name or (start != name and listed.startswith(start)) for listed in NAMES), (
            f"{page} says that {name} waits, which data/queue.toml does not list"
        )
