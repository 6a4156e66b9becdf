"""What the chapters show, where there are records and where there are none."""

import numpy as np
import pytest
import torch
from small import SMALL_MODEL, ragged
from test_records import made

from hetfl_book import ledger, notebook
from hetfl_book.experiments import known
from hetfl_core.datasets.registry import DataError
from hetfl_core.methods import FLIC
from hetfl_core.records import storage


@pytest.fixture
def shown(monkeypatch):
    seen = []
    monkeypatch.setattr(notebook, "display", lambda thing: seen.append(str(getattr(thing, "data", thing))))
    return seen


@pytest.fixture
def rows():
    accuracy = {0: 0.721, 1: 0.723, 2: 0.722}
    mine = [made(method="FLIC-HL", seed=s, metrics={"accuracy": a}) for s, a in accuracy.items()]
    low = [made(method="FedRep", seed=s, metrics={"accuracy": 0.65}) for s in accuracy]
    numbers = ledger.numbers(mine + low, known=known())
    return numbers[(numbers["experiment"] == "flic/bci-common40") & (numbers["paper"] == "flic")]


def test_paper_and_ours_stand_in_one_line(rows, shown):
    notebook.beside(rows)
    caption, table = shown
    assert "FLIC" in caption
    assert "seeds 0, 1, 2" in caption
    line = next(line for line in table.splitlines() if "FLIC-HL" in line)
    assert "72.12 ± 0.6" in line
    assert "72.20 ± 0.10" in line
    assert "agrees" in line
    assert "–" in next(line for line in table.splitlines() if "HetFedRep" in line)


@pytest.mark.parametrize(("runs", "said"), [(1, "72.10 (1 seed)"), (2, "72.20 ± 0.14 (2 seeds)"), (3, "72.20 ± 0.10")])
def test_seeds_too_few_to_conclude_from_are_counted(runs, said, shown):
    mine = [made(method="FLIC-HL", seed=s, metrics={"accuracy": a}) for s, a in enumerate((0.721, 0.723, 0.722)[:runs])]
    numbers = ledger.numbers(mine, known=known())
    notebook.beside(numbers[(numbers["experiment"] == "flic/bci-common40") & (numbers["method"] == "FLIC-HL")])
    _, ours, _ = (cell.strip() for cell in shown[1].splitlines()[-1].strip("|").split("|")[1:])
    assert ours == said


def test_what_is_missing_comes_with_its_command(rows, shown):
    notebook.pending(rows)
    notebook.no_records("flic/toy-noisy")
    assert "hetfl reproduce flic/bci-common40 --scale paper" in shown[0]
    assert "hetfl reproduce flic/toy-noisy --scale paper" in shown[1]


def test_where_files_are_missing_made_ones_take_their_place_and_are_announced(shown):
    def make(made=False):
        if not made:
            raise DataError("no file")
        return "made"

    assert notebook.real_or_made(make) == "made"
    assert "Made-up patients" in shown.pop()
    assert notebook.real_or_made(lambda: "recorded") == "recorded"
    assert not shown


def test_data_that_are_not_at_hand_are_announced(shown):
    def fail():
        raise DataError("no network")

    assert notebook.files_or_note(fail, "flic_bci.common40", "records") is None
    assert "flic_bci.common40" in shown[0]
    assert notebook.files_or_note(lambda: 3, "x", "y") == 3


def test_histories_come_in_the_order_of_the_methods(monkeypatch, tmp_path):
    monkeypatch.setattr(storage, "data_path", lambda *parts: tmp_path)
    for method, seed in (("FLIC-HL", 0), ("FLIC-HL", 1), ("Local", 0)):
        ledger.write(made(method=method, seed=seed), tmp_path)
    found = notebook.histories("flic/bci-common40")
    assert {name: len(frames) for name, frames in found.items()} == {"Local": 1, "FLIC-HL": 2}
    assert list(found) == ["Local", "FLIC-HL"]


def test_what_pre_training_leaves_is_what_a_run_begins_with():
    """Networks have moved, each client embeds by its own, and the same seed gives the same bits."""
    federation, method = ragged(n_clients=3), FLIC(model=SMALL_MODEL, pretrain_epochs=5)
    kept, start = notebook.aligned(federation, method, seed=1)
    z = notebook.embedded(federation, method, kept, start.server, "test")
    assert list(z) == [client.name for client in federation]
    for client, own, drawn in zip(federation, kept, start.client_states, strict=True):
        assert not torch.equal(own["phi.0.weight"], drawn["phi.0.weight"])
        by_hand = method.model.embed(own, client.x_test.float()).detach().numpy()
        np.testing.assert_array_equal(z[client.name], by_hand)
    again, same = notebook.aligned(federation, method, seed=1)
    assert all(torch.equal(a[n], b[n]) for a, b in zip(kept, again, strict=True) for n in a)
    assert torch.equal(start.server["anchor.mean"], same.server["anchor.mean"])


def test_fewer_epochs_are_the_beginning_of_more():
    """A picture for each of several numbers of epochs is a film of one training."""
    federation = ragged(n_clients=2)
    two, four = (notebook.aligned(federation, FLIC(model=SMALL_MODEL, pretrain_epochs=n))[0] for n in (2, 4))
    one_more = notebook.aligned(federation, FLIC(model=SMALL_MODEL, pretrain_epochs=3))[0]
    step = [[float((a[n] - b[n]).norm()) for n in ("phi.0.weight",)] for a, b in zip(two, one_more, strict=True)]
    way = [[float((a[n] - b[n]).norm()) for n in ("phi.0.weight",)] for a, b in zip(two, four, strict=True)]
    assert all(0 < s[0] < w[0] for s, w in zip(step, way, strict=True))


def test_labels_go_with_what_is_embedded():
    federation = ragged(n_clients=2)
    assert [y.tolist() for y in notebook.labels_of(federation, "test").values()] == [
        client.y_test.tolist() for client in federation
    ]


@pytest.mark.parametrize("wrong", ["validation", None])
def test_there_are_two_parts_of_the_data(wrong):
    federation = ragged(n_clients=2)
    with pytest.raises((ValueError, TypeError), match="split"):
        notebook.labels_of(federation, wrong)
    with pytest.raises((ValueError, TypeError), match="split"):
        notebook.embedded(federation, FLIC(model=SMALL_MODEL), [{}, {}], {}, wrong)


def test_every_client_is_embedded_by_its_own_parameters():
    with pytest.raises(ValueError, match="kept must be of each of 2 clients, got 1"):
        notebook.embedded(ragged(n_clients=2), FLIC(model=SMALL_MODEL), [{}], {})


@pytest.mark.parametrize(
    ("words", "text"), [([], "none"), (["a"], "a"), (["a", "b"], "a and b"), (iter("abc"), "a, b and c")]
)
def test_lists_in_sentences(words, text):
    assert notebook.listed(words) == text


def test_verdicts_are_counted_in_the_order_of_the_ledger():
    found = ["open", "holds", "pending", "holds", "reverses", "fails"]
    assert notebook.of_verdicts(found) == "2 hold, 1 is open, 1 is reversed, 1 fails"
    assert notebook.of_verdicts(["pending"]) == "none can be judged yet"
    assert notebook.counted_verdicts({"lower": 1, "agrees": 3, "higher": 0}) == "3 agree, 1 is lower"
