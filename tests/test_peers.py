"""`hetfl bench --peers`: that what is compared is one problem, and that what is printed is what was measured."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from hetfl_book import plugin
from hetfl_book.peers import floor, ours, table
from hetfl_book.peers.problems import BATCH, EPOCHS, LR, OWN, Case
from hetfl_core import simulate

pytestmark = pytest.mark.nightly

SMALL = Case(6, 4, 2, 1, clients=3, samples=20)


@pytest.fixture(scope="module")
def python():
    found = table.fedjax_python()
    if found is None:
        pytest.skip(f"FedJAX: {table.PLACE} names no Python that has it")
    return found


# --- one problem ------------------------------------------------------------------------------------------------------


def test_the_table_is_that_of_the_issue_and_every_case_what_it_says():
    names = ["784-64, 10 of 100", "784-64, 100 of 100", "784-16, 10 of 100", "30-64, 10 of 100", "30-64, 100 of 100"]
    assert [case.name for case in table.CASES] == names
    x, y = SMALL.made()
    fed, method = SMALL.federation(), SMALL.method()
    assert x.shape == (3, 20, 6)
    assert [c.n_train for c in fed] == [20] * 3
    for i, client in enumerate(fed):
        np.testing.assert_array_equal(client.x_train, x[i])
        np.testing.assert_array_equal(client.y_train, y[i])
    assert (method.local_epochs, method.batch_size, method.optimizer, method.lr) == (EPOCHS, BATCH, "sgd", LR)


def test_a_round_of_ours_is_a_round_by_hand():
    """By the chain rule in NumPy as well, one client and one step at a time."""
    assert table.gaps(SMALL, None)["by hand"] < table.TOLERANCE
    side = ours.FedAvgSide(Case(6, 4, 3, 1, clients=3, samples=20))  # whole batches
    (x, y), rows = side.case.made(), side.batches.numpy()
    mean = {name: np.zeros(p.shape) for name, p in side.start.items()}
    for client in range(3):
        w1, b1, w2, b2 = (p.double().numpy() for p in side.start.values())
        for step in rows[:, client]:
            inputs, target = x[client, step], np.eye(10)[y[client, step]]
            before = inputs @ w1 + b1
            h = np.maximum(before, 0)
            e = np.exp(h @ w2 + b2)
            do = (e / e.sum(1, keepdims=True) - target) / len(step)
            dh = do @ w2.T * (before > 0)
            w1, b1, w2, b2 = w1 - LR * inputs.T @ dh, b1 - LR * dh.sum(0), w2 - LR * h.T @ do, b2 - LR * do.sum(0)
        for name, p in zip(mean, (w1, b1, w2, b2), strict=True):
            mean[name] += p / 3
    after = side.run(1).server
    for name, p in side.by_hand(3).items():
        torch.testing.assert_close(p.mean(0).double(), torch.from_numpy(mean[name]), rtol=0, atol=1e-6)
        torch.testing.assert_close(after[ours.LEAVES[name]].double(), torch.from_numpy(mean[name]), rtol=0, atol=1e-6)


def test_a_round_of_fedjax_is_a_round_of_ours(python):
    """From the same weights, on the same batches; with other batches it is not."""
    case = Case(30, 16, 10, 1, samples=40)
    assert table.gaps(case, python)["FedJAX"] < table.TOLERANCE


def test_another_computation_is_refused(monkeypatch):
    monkeypatch.setattr(table, "fedjax_python", lambda: None)
    monkeypatch.setattr(table, "gaps", lambda case, python: {"by hand": 0.0, "FedJAX": math.nan})
    with pytest.raises(RuntimeError, match="784-64, 10 of 100: a round of ours and FedJAX must agree to 1e-05"):
        list(table.lines())


# --- what is measured -------------------------------------------------------------------------------------------------


class Clocked:
    """A program whose runs take what they are told to take."""

    def __init__(self, wall, cpu):
        self.wall, self.cpu, self.asked = wall, cpu, []

    def ask(self, **what):
        self.asked.append(what)
        return {"wall": 5 + self.wall * what["rounds"], "cpu": 7 + self.cpu * what["rounds"]}


def test_set_up_is_subtracted_and_programs_take_turns():
    a, b = Clocked(0.5, 1.0), Clocked(0.25, 0.125)
    assert table.rounds(a, 4, engine="loop") == {"wall": 2.0, "cpu": 4.0}
    assert a.asked == [{"rounds": 1, "engine": "loop"}, {"rounds": 5, "engine": "loop"}]
    order = []
    for name, program in {"a": a, "b": b}.items():
        program.ask = lambda name=name, ask=program.ask, **what: (order.append((name, what["rounds"])), ask(**what))[1]
    found = table.in_turn({"a": a, "b": b}, 4, 2)
    assert found == {"a": [{"wall": 2.0, "cpu": 4.0}] * 2, "b": [{"wall": 1.0, "cpu": 0.5}] * 2}
    assert order == [("a", 1), ("b", 1), *[("a", 1), ("a", 5), ("b", 1), ("b", 5)] * 2], "each warms up first"


def test_ratios_are_those_of_neighbours(monkeypatch):
    """FedJAX takes 6, 4 and 9 s where ours takes 2, 2 and 3: 3, 2 and 3 times as long."""

    class Program:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def ask(self, **what):
            return {"cpu": 0.5}

    took = {"FedJAX": [6.0, 4.0, 9.0], "ours": [2.0, 2.0, 3.0]}
    found = {name: [{"wall": t, "cpu": 2 * t} for t in times] for name, times in took.items()}
    monkeypatch.setattr(table, "ours", lambda **told: Program())
    monkeypatch.setattr(table, "fedjax", lambda *told: Program())
    monkeypatch.setattr(table, "in_turn", lambda programs, count, repeats: {name: found[name] for name in programs})
    monkeypatch.setattr(table, "rounds", lambda program, count, **options: {"cpu": 8.0})
    case = Case(6, 4, 2, 2, clients=3, samples=20)
    cells = table.case_line(case, "python", 3).split("  ")
    assert [c.strip() for c in cells if c.strip()] == [
        *("6-4, 2 of 3, 2 rounds", "6.00 / 12.00", "2.00 / 4.00", "3.00 (2.00-3.00)", "3.00 (2.00-3.00)", "4.0", "4.00")
    ]
    alone = table.case_line(case, None, 3).split("  ")
    assert [c.strip() for c in alone if c.strip()] == ["6-4, 2 of 3, 2 rounds", "2.00 / 4.00", "4.0", "4.00"]


def test_products_are_counted_and_their_operations_are_those_of_arithmetic():
    a, b = torch.ones(3, 4, 5, dtype=torch.float32), torch.ones(5, 6, dtype=torch.float32)
    with floor.Products() as products:
        for _ in range(2):
            (a @ a.mT).relu()
        a[0] @ b
    assert sorted(products.counts.values()) == [1, 2]
    found = floor.cost(products.counts, lambda call: call() is not None and 0.25)
    assert found["seconds"] == 0.75
    assert found["flops"] == 2 * (2 * 3 * 4 * 4 * 5) + 2 * 4 * 5 * 6
    assert found["bytes"] == 4 * (2 * 3 * (20 + 20 + 16) + 20 + 30 + 24)


def test_operands_are_made_with_the_layout_that_was_seen():
    for t in (torch.zeros(3, 4, dtype=torch.float32).T, torch.zeros((), dtype=torch.float64).expand(2, 2)):
        made = floor._made(floor._frozen(t))
        assert (made.shape, made.stride(), made.dtype) == (t.shape, t.stride(), t.dtype)
    spd = torch.linalg.cholesky(floor._made(floor._frozen(torch.zeros(2, 3, 3, dtype=torch.float64))))
    assert bool(spd.isfinite().all())


@pytest.mark.parametrize("name", OWN)
def test_what_only_we_can_do_runs_and_is_of_unlike_clients(name):
    make, method = OWN[name]
    federation = make(18, 20)
    assert len({str(client.shapes) for client in federation}) == (3 if "HyFEM" in name else 17)
    run = simulate(make(3, 20), method, rounds=1, progress=False, device="cpu")
    assert np.isfinite(run.history["accuracy"]).all()


# --- the programs -----------------------------------------------------------------------------------------------------


def test_our_program_answers_and_says_why_it_ended():
    with table.ours(**vars(SMALL)) as program:
        found = program.ask(rounds=1)
        assert found["wall"] > 0
        assert found["mb"] > 50
        assert program.ask(by_hand=2, times=1)["cpu"] > 0
        with pytest.raises(RuntimeError, match=r"ended: [\s\S]*rounds must be"):
            program.ask(rounds=-1)


def test_answers_are_what_was_asked(monkeypatch):
    side = ours.Side(OWN["HyFEM, two of three blocks"][0](3, 20), OWN["HyFEM, two of three blocks"][1])
    monkeypatch.setattr(floor, "least", lambda call: 1.0)
    alone = ours.answer(side, {"products": 1})
    assert alone["seconds"] == int(alone["seconds"]) > 100, "steps and products are whole numbers of calls"
    assert ours.answer(side, {"rounds": 1}).keys() == {"wall", "cpu", "mb"}


def test_without_fedjax_the_recipe_is_printed(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(table.PLACE, raising=False)
    lines = plugin.peers()
    assert next(lines) == table.RECIPE
    assert f"pip install fedjax=={table.VERSION}" in table.RECIPE
    monkeypatch.setenv(table.PLACE, str(tmp_path / "python"))
    assert table.fedjax_python() is None
    (tmp_path / "python").touch()
    assert table.fedjax_python() == str(tmp_path / "python")


def test_the_report_has_a_line_for_each(monkeypatch):
    monkeypatch.setattr(table, "fedjax_python", lambda: None)
    monkeypatch.setattr(table, "OWN", {name: OWN[name] for name in list(OWN)[1:2]})
    lines = list(table.lines((SMALL,), own=(3, 20, 1), repeats=1))
    assert sum(line.startswith(SMALL.name) for line in lines) == 1
    assert sum(line.startswith("HyFEM") for line in lines) == 1
    assert json.dumps(lines)
