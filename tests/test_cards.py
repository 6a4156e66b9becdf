"""Method cards and the data card: one for each method, whose programs run and whose sentences the records bear out."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pandas as pd
import pytest
from facts import cards as of_cards
from facts import failures

from hetfl_book.headtohead import cards, datacard
from hetfl_book.headtohead.entries import ALONE, ROUNDS, entries
from hetfl_book.headtohead.federations import FEDERATIONS
from hetfl_core.methods import CATALOGUE, FedProx
from hetfl_core.networks import Model

BOOK = Path(__file__).resolve().parents[1] / "book"
PAGES = {path.stem: path.read_text("utf8") for path in sorted(BOOK.glob("method-cards*.md"))}
TOGETHER = {name: entry for name, entry in entries().items() if entry.exchanges}

each_card = pytest.mark.parametrize("name", cards.CARDS)


# --- which there are --------------------------------------------------------------------------------------------------


def test_every_line_of_the_head_to_head_has_a_card_and_only_one() -> None:
    told = [line for name in cards.CARDS for line in cards.lines(name)]
    assert sorted(told) == sorted(name for name, entry in entries().items() if entry.way != "one place")


def test_every_card_stands_on_one_page_below_its_label() -> None:
    found = re.findall(r"\(card-(\w+)\)=\n## .+\n\n\{\{ card (\w+) \}\}\n", "".join(PAGES.values()))
    assert all(label == name for label, name in found)
    assert sorted(name for _, name in found) == sorted(cards.CARDS)


@each_card
def test_calls_make_the_methods_of_the_lines(name: str) -> None:
    scope = {"Model": Model, name: cards.class_of(name)}
    for line, call in cards.CARDS[name].calls.items():
        made = eval(call, scope)
        assert made.name == entries()[line].method.name
        assert not call.startswith("CATALOGUE")


# --- what stands on them ----------------------------------------------------------------------------------------------


@pytest.mark.nightly
@each_card
def test_programs_have_eight_lines_and_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = cards.program(name)
    assert code.count("\n") == 8
    few = code.replace(f"rounds={ROUNDS}", "rounds=1, progress=False").replace(
        "pretrain_epochs=20", "pretrain_epochs=1"
    )
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(few.replace("lr=", "local_steps=2, lr="), name, "exec"), {})
    assert all(hospital in printed.getvalue() for hospital in ("Cleveland", "Budapest", "Zurich", "Long Beach"))


@each_card
def test_the_place_of_an_equation_is_that_of_the_methods_docstring(name: str) -> None:
    kind, said = cards.class_of(name), cards.CARDS[name]
    assert cards.equation(kind)
    assert said.where in Path(sys.modules[kind.__module__].__file__ or "").read_text("utf8")
    assert bool(cards.references(kind)) == (name not in ("Local", "LateFusion")), "which are nobody's"


def test_letters_of_an_equation_are_explained_by_settings_that_there_are() -> None:
    for name, said in cards.CARDS.items():
        settings = re.findall(r"`(\w+)`", said.symbols)
        assert all(hasattr(cards.class_of(name), setting) for setting in settings), name


def test_equations_come_from_the_class_or_else_from_its_module() -> None:
    assert cards.equation(FedProx) == r"f_i(w) + \frac{\mu}{2}\|w - w^{(t)}\|^2"
    assert cards.equation(cards.class_of("LaserVFL")).startswith(r"\frac{1}{2^n - 1} \sum_{S} \ell")
    assert cards.equation(cards.class_of("FLIC")).count(r"\\") == 1, "over two lines"
    bare = type("Bare", (), {"__doc__": "Nothing.", "__module__": __name__})
    with pytest.raises(ValueError, match="Bare: neither its docstring nor its module's"):
        cards.equation(bare)
    with pytest.raises(ValueError, match="card must be"):
        cards.card("FedNothing")


def test_references_are_those_that_the_first_parts_cite_without_code() -> None:
    [paper] = cards.references(FedProx)
    assert paper.startswith("T. Li, A. K. Sahu")
    assert paper.endswith("MLSys 2020.")
    assert len(cards.references(cards.class_of("FedHeNN"))) == 2, "the method, and who adapted it"
    assert cards.references(cards.class_of("Local")) == []


@pytest.mark.parametrize("line", TOGETHER)
def test_what_leaves_a_client_is_what_the_records_count(line: str) -> None:
    """Up to what is asked for once, before the first round."""
    sent, found = cards.sent(line), cards.kilobytes(line)
    assert sent.nbytes == 4 * sum(sent.numbers.values())
    assert found is not None
    assert sent.nbytes / 1000 <= found[0] + 1e-9 <= sent.nbytes / 1000 * (1 + 1 / ROUNDS) + 1e-9


def test_what_stays_is_never_sent() -> None:
    flic, avg, proto = (cards.sent(name) for name in ("FLIC-HL", "FedAvg", "FedProto"))
    assert dict(flic.numbers) == {"hidden layer α": 32 * 32 + 32, "anchors": 2 * 32}
    assert flic.stays == ["embedding φ", "head β"]
    assert (avg.stays, avg.told) == ([], ["its number of rows"])
    assert proto.told == ["its number of rows", "its number of rows of each class"]


@pytest.mark.parametrize("line", TOGETHER)
def test_parts_that_a_class_shares_are_sent(line: str) -> None:
    """But for a head that all have from the server and nobody moves, as FedBABU's."""
    method, sent = TOGETHER[line].method, cards.sent(line)
    shared = {cards.PARTS[part] for part in method.shared if part in method.model.parts}
    assert shared - {*sent.numbers} <= {"head β"}
    assert not shared & {*sent.stays} - {"head β"}


def test_gains_are_bold_where_their_interval_excludes_zero() -> None:
    assert cards.points(4.44, 1.0, 7.88).replace("\N{NO-BREAK SPACE}", " ") == "**+4.4 ± 3.4**"
    assert cards.points(-0.44, -1.0, 0.12).replace("\N{NO-BREAK SPACE}", " ") == "−0.4 ± 0.6"
    assert cards.points(float("nan"), 0.0, 0.0) == "–"
    assert cards.points(1.0, float("nan"), float("nan")) == "+1.0", "of one seed"


def test_an_arrow_says_that_a_setting_lies_at_an_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {
        "federation": ["heart", "heart", "liver"],
        "size": ["all", "tenth", "all"],
        "method": ["FedProx", "FedProx", "logistic regression alone"],
        "chosen": [{"term_weight": 1.0, "lr": 0.0003}, None, {"logisticregression__C": 0.3}],
        "edges": [{"term_weight": "largest", "lr": "smallest"}, {}, {}],
    }
    monkeypatch.setattr(cards, "_choices", lambda: pd.DataFrame(rows))
    assert cards.chosen("heart", "all", "FedProx") == "lr 0.0003 ↓, term_weight 1 ↑"
    assert cards.chosen("heart", "tenth", "FedProx") == "–", "every setting diverged"
    assert cards.chosen("liver", "all", "logistic regression alone") == "C 0.3"
    assert cards.chosen("heart", "all", "FedProx, own last step") == "the same"
    monkeypatch.setattr(cards, "_choices", pd.DataFrame)
    assert cards.chosen("heart", "all", "FedProx") == "–"


def test_a_card_has_a_row_for_each_federation_with_records_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"gain": 1.0, "low": -1.0, "high": 3.0, "gain_sharing": 0.5, "low_sharing": 0.1, "high_sharing": 0.9}
    places = [("liver", "all"), ("heart", "tenth"), ("heart", "all")]
    rows = [{"federation": f, "size": s, "method": "FedProx", **numbers} for f, s in places]
    monkeypatch.setattr(cards, "_cells", lambda: pd.DataFrame(rows))
    lines = cards.gains_table("FedProx").replace("\N{NO-BREAK SPACE}", " ").splitlines()
    assert lines[0] == "| federation | over alone | by sharing | settings chosen |"
    assert [re.search(r"\[(\w+)\]\(runs-\1\), (\w+)", line).groups() for line in lines[2:]] == [  # type: ignore[union-attr]
        ("heart", "all"), ("heart", "tenth"), ("liver", "all")
    ]  # fmt: skip
    assert "| +1.0 ± 2.0 | **+0.5 ± 0.4** |" in lines[2]


def test_names_of_federations_lead_to_their_runs() -> None:
    page = (BOOK / "headtohead-runs.ipynb").read_text("utf8")
    assert all(f"(runs-{name})=" in page for name in FEDERATIONS)


def test_without_records_a_card_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = pd.DataFrame(columns=["federation", "size", "method", "gain_sharing"])
    monkeypatch.setattr(cards, "_cells", lambda: empty)
    monkeypatch.setattr(cards, "_leaks", pd.DataFrame)
    text = cards.card("FedProx")
    assert "costs\n: –" in text
    assert ": not surveyed yet" in text


def test_what_lines_have_in_common_stands_once() -> None:
    text = cards.facts_list("FLIC")
    assert text.count("embedding φ, head β") == 1
    assert ": *FLIC-HL*: hidden layer α (1,056), anchors (64)\n: *FLIC-Class*: anchors (64)\n" in text
    assert cards.facts_list(type(entries()[ALONE].method).__name__).startswith("costs\n: *network alone*: ")


# --- sentences --------------------------------------------------------------------------------------------------------

RESULT = re.compile(
    r"\b(shown|ahead|behind|above|below|higher|lower|less than|more than|loses?|gains?|changes the mean)\b"
)


def sentences(said: cards.Card) -> list[str]:
    return [s for text in (said.helps, said.fails) for s in re.split(r"(?<=\.)\s+", text)]


@each_card
def test_sentences_say_what_the_records_say(name: str) -> None:
    said, known = cards.CARDS[name], of_cards.facts()[name]
    text = " ".join([said.what, said.helps, said.fails])
    wrong = failures(text, known)
    assert not wrong, "\n".join([f"cards.toml, {name}", *wrong])
    for sentence in sentences(said):
        if RESULT.search(sentence):
            assert re.search("hospital|there|Cleveland|Neither is shown", sentence), (
                f"other records may say else: {sentence}"
            )
            assert any(sentence.rstrip(".") in words or words in sentence for words, *_ in known), (
                f"no fact: {sentence}"
            )


def test_facts_are_of_cards_that_there_are() -> None:
    assert {*of_cards.facts()} == {*cards.CARDS}
    assert {*CATALOGUE} >= {entry.method.name for entry in TOGETHER.values()}


# --- the build --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def extension() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BOOK / "_ext")
        yield importlib.import_module("hetfl_cards")


def test_pages_are_filled_in_and_read_again_when_what_they_say_changes(extension: ModuleType) -> None:
    seen: list[str] = []
    app = SimpleNamespace(env=SimpleNamespace(note_dependency=seen.append))
    source = ["# A page\n\n{{ card FedProx }}\n\n{{ cards }}\n\n{{ sources }}\n\n{{ tally }}"]
    extension.fill_in(app, "page", source)
    assert "::::{container} method-card" in source[0]
    assert "[FLIC-HL](card-FLIC)" in source[0]
    assert "- `heart`: A. Janosi" in source[0]
    assert source[0].endswith("{{ tally }}"), "which others fill in"
    assert {Path(path).name for path in seen} >= {
        "cards.toml",
        "cards.py",
        "headtohead.csv",
        "heart-all.jsonl",
        "digits.jsonl",
    }
    seen.clear()
    extension.fill_in(app, "other", ["nothing"])
    assert seen == []


# --- the data card ----------------------------------------------------------------------------------------------------


def test_the_data_card_has_each_federation_with_licence_and_source() -> None:
    lines = datacard.table().splitlines()
    assert [line.split("`")[1] for line in lines[2:]] == list(FEDERATIONS)
    assert "| `heart` | real | 4 | 15 to 22 | 2 | 550 (73) | 59 (11) | 370 | CC BY 4.0 |" in lines
    assert [line for line in lines if "`solids` | made |" in line and line.endswith("| made up here |")]
    assert [line for line in lines if "`fashion-shares` | real rows |" in line and line.endswith("| MIT |")]
    told = datacard.sources()
    assert {*re.findall(r"`([\w-]+)`", told)} == {name for name, setting in FEDERATIONS.items() if setting.data}
    assert "- `fashion-quadrants`, `fashion-classes`, `fashion-shares`: H. Xiao" in told
    assert "{{ federations }}" in (BOOK / "headtohead.md").read_text("utf8")
