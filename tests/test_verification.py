"""Records run again: the same bits, within the spread of seeds, or different; and one seed rounded otherwise."""

import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from small import small_experiments

from hetfl_book import experiments, ledger, verification
from hetfl_book.experiments import Job, reproduce
from hetfl_book.ledger import arithmetic
from hetfl_book.verification import DIFFERENT, NOT_RUN, SAME, WITHIN, check, sample, verify
from hetfl_core import cli, numerics, records


@pytest.fixture(autouse=True)
def tiny(monkeypatch, tmp_path):
    """Two small experiments."""
    small_experiments(monkeypatch, tmp_path, {"one": {}, "two": {}}, rounds=2)


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    """A folder with the records of the first experiment, three seeds."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as monkeypatch:
        small_experiments(monkeypatch, folder, {"one": {}}, rounds=2)
        list(reproduce(experiments.jobs("tests/one", "paper", 3), folder / "records", progress=False))
    return folder / "records"


@pytest.fixture
def stored(made_once, tmp_path):
    """The records of `made_once`, in a folder of one's own."""
    shutil.copytree(made_once, tmp_path / "records")
    return ledger.load(tmp_path / "records")


def made(experiment="tests/one", seconds=1.0, seed=0, accuracy=0.5, **changes):
    values = {
        "scale": "paper", "method": "Local", "settings": {"rounds": 2}, "federation": {"fingerprint": "a"},
        "history": {"round": [0]}, "commit": "0" * 40, "dirty": False, "numerics": numerics.in_effect(),
    }  # fmt: skip
    metrics = {"accuracy": accuracy, "seconds": seconds}
    return ledger.RunRecord(experiment, seed=seed, metrics=metrics, seconds=seconds, **(values | changes))


def test_what_is_run_again_has_the_same_bits_and_nothing_is_written(stored, tmp_path):
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    found = list(verify(stored, among=stored))
    assert [c.verdict for c in found] == [SAME] * 6
    assert {c.why for c in found} == {""}
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert verification.summary(found) == "6 records: 6 same bits, 0 within the spread of seeds, 0 different, 0 not run"
    assert found[0].spread == pytest.approx(100 * pd.Series([r.metrics["accuracy"] for r in stored[:3]]).std())


def test_one_digit_is_enough(stored):
    """The last digit of one metric, one round or one client."""
    again = stored[0]
    for name, key in (("metrics", "balanced_accuracy"), ("history", "ce"), ("per_client", "accuracy")):
        table = dict(getattr(again, name))
        x = table[key]
        table[key] = math.nextafter(x, 0) if name == "metrics" else [*x[:-1], x[-1] * (1 - 1e-5) + 1e-9]
        assert not verification.same_numbers(replace(again, **{name: table}), again), name
    slower = replace(again, metrics={**again.metrics, "seconds": 99.0}, history={**again.history, "seconds": [9.0] * 3})
    assert verification.same_numbers(slower, again), "time is no result"
    assert verification.same_numbers(replace(again, per_client={}), again), "older records have no clients"


@pytest.mark.parametrize(("off", "verdict"), [(0.009, WITHIN), (0.011, DIFFERENT)])
def test_within_one_standard_deviation_of_the_seeds(off, verdict):
    seeds = [made(seed=s, accuracy=a) for s, a in enumerate((0.49, 0.50, 0.51))]
    again = replace(seeds[1], metrics={"accuracy": 0.50 + off})
    found = check(seeds[1], again, seeds)
    assert found.spread == pytest.approx(1.0)
    assert found.verdict == verdict
    assert found.row()["difference"] == pytest.approx(100 * off)
    assert check(seeds[1], again, seeds[:2]).verdict == DIFFERENT, "two seeds have no spread to speak of"


def test_why():
    now = made()
    old = made(
        numerics={}, federation={"fingerprint": "b"}, settings={"rounds": 3, "gone": 1}, commit="1" * 40,
        versions={"torch": "2.6.0"}, hardware={"cpu": "another"}, accuracy=0.4,
    )  # fmt: skip
    again = replace(now, versions={"torch": "2.13.0"}, hardware={"cpu": "this"})
    assert check(old, again).why == (
        f"other data (fingerprint); other settings (rounds); instructions not recorded (here {now.isa}); "
        "torch 2.6.0 → 2.13.0; cpu another → this; code 1111111111 → 0000000000"
    )
    assert "isa avx512 → " in check(replace(old, numerics=now.numerics | {"isa": "avx512"}), now).why
    assert check(replace(now, metrics={"accuracy": 0.1}), now).why.startswith("nothing that the record states")


def test_a_sample_is_the_same_each_time_and_of_many_experiments():
    records = [made(f"tests/e{e}", seed=s, seconds=1 + s) for e in range(5) for s in range(20)]
    drawn = sample(records, 5)
    assert drawn == sample(records, 5)
    assert drawn != sample(records, 5, seed=1)
    assert len({r.experiment for r in drawn}) == 5, "one of each before a second of any"
    assert len(sample(records)) == 100
    cheap = sample(records, 10, budget=40)
    assert max(r.seconds for r in cheap) <= 4, "40 s for 10 records are 4 s for each"
    assert {r.experiment for r in cheap} == {r.experiment for r in records}
    assert [r.seconds for r in sample(records, 7, budget=1)] == [1] * 5 + [2] * 2, "else the cheapest"
    with pytest.raises(ValueError, match="sample must be at least 1, got 0"):
        sample(records, 0)


def test_what_cannot_be_run_is_left_out(monkeypatch):
    assert verification.can_run(made())
    assert not verification.can_run(made("tests/three"))
    assert not verification.can_run(made(method="FLIC-XL"))
    assert not verification.can_run(made(scale="own"))
    monkeypatch.setattr(experiments, "available", lambda experiment: False)
    assert not verification.can_run(made())


def test_a_budget_ends_it(stored, monkeypatch):
    clock = iter([0.0, 0.0, *[100.0] * 50])
    monkeypatch.setattr(verification.time, "monotonic", lambda: next(clock))
    found = list(verify(stored[:3], budget=10))
    assert [c.verdict for c in found] == [NOT_RUN] * 3, "the first in the middle of a run"
    assert found[0].row()["why"] == "the budget was spent"


def test_the_command(stored, tmp_path, monkeypatch, capsys):
    def call(*arguments):
        given = ["--records", str(tmp_path / "records"), "--jobs", "1", *arguments]
        monkeypatch.setattr(sys, "argv", ["hetfl", "verify", *given])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code or 0, capsys.readouterr().out

    code, out = call("--sample", "2", "--experiment", "tests/one")
    assert code == 0
    assert "6 records, 6 of which can be run here; 2 are run again" in out
    assert "2 records: 2 same bits" in out
    path = tmp_path / "records" / stored[0].relative_path
    records.write_to(replace(stored[0], metrics={**stored[0].metrics, "accuracy": 1.0}, numerics={}), path)
    changed = path.read_bytes()
    code, out = call()
    assert code == 1
    assert "5 same bits, 0 within the spread of seeds, 1 different" in out
    assert "(1) instructions not recorded" in out
    assert path.read_bytes() == changed, "a record is never overwritten"


# --- arithmetic -------------------------------------------------------------------------------------------------------


def test_a_varied_run_is_a_record_of_its_own(tmp_path):
    record = verification.varied(Job("tests/one", "paper", "Local", 1), 2)
    isa = numerics.in_effect()["isa"]
    assert (record.experiment, record.scale, record.seed) == ("arithmetic/tests/one", "own", 1)
    assert record.method == f"Local, {isa}, stacks of 2"
    assert record.settings["stack_size"] == 2
    assert record.settings["of"] == {"scale": "paper", "method": "Local"}
    assert ledger.read(ledger.write(record, tmp_path)) == record


def test_variations_run_in_processes_with_the_instructions_set(tmp_path, monkeypatch):
    seen = []

    def run(command, env, **options):
        seen.append((command[2:], env))
        return type("Done", (), {"returncode": int("bad" in command), "stdout": "a/path\n", "stderr": "no such thing"})

    monkeypatch.setattr(verification.subprocess, "run", run)
    job = Job("tests/one", "paper", "Local", 0)
    assert list(verification.vary(job, ["portable", "fastest"], [1024, 3], tmp_path)) == [Path("a/path")] * 4
    assert seen[0][0] == ["hetfl_book.verification", "tests/one", "paper", "Local", "0", "1024", str(tmp_path)]
    held = numerics.settings()
    assert held.items() <= seen[0][1].items()
    assert not held.keys() & seen[1][1].keys(), "the fastest is what nobody holds"
    with pytest.raises(RuntimeError, match="with portable and stacks of 3: no such thing"):
        list(verification.vary(replace(job, method="bad"), ["portable"], [3], tmp_path))


def varied_record(accuracy, isa="avx2", stack=1024, seed=0, experiment="tests/one"):
    settings = {"stack_size": stack, "of": {"scale": "paper", "method": "Local"}}
    how = {"scale": "own", "method": f"Local, {isa}, stacks of {stack}", "settings": settings}
    numbers = {"isa": isa, "revision": 1}
    return made(f"arithmetic/{experiment}", seed=seed, accuracy=accuracy, numerics=numbers, **how)


def test_spread_over_arithmetic_beside_that_over_seeds():
    """Seed 0: 50, 51, 52, and 50 again, which is no other way to round; seed 1: 40, 43. Pooled: (2 + 4.5) / 3."""
    ways = [varied_record(a, isa, stack) for a, isa, stack in
            ((0.50, "avx2", 1024), (0.51, "avx512", 1024), (0.52, "default", 1024), (0.50, "avx2", 3))]  # fmt: skip
    ways += [varied_record(0.40, seed=1), varied_record(0.43, "avx512", seed=1)]
    seeds = [made(seed=s, accuracy=a) for s, a in enumerate((0.49, 0.50, 0.51))]
    [line] = ledger.arithmetic_spreads([*ways, *seeds, made("tests/two")]).to_dict("records")
    assert line["arithmetic"] == pytest.approx(math.sqrt(6.5 / 3))
    assert (line["varied"], line["ways"], line["seeds"], line["same_data"]) == (2, 5, 3, True)
    assert (line["largest"], line["over_seeds"]) == (pytest.approx(3.0), pytest.approx(1.0))
    assert ledger.arithmetic_spreads(seeds).empty
    assert ledger.arithmetic_spreads([ways[0], ways[3]])["arithmetic"].tolist() == [0.0], "tried, and the same"
    assert ledger.arithmetic_spreads(ways[:1])["arithmetic"].isna().all(), "not tried"


def test_a_verdict_that_other_arithmetic_could_turn():
    """With s = 1 and n = 2 pairs the mean difference moves by 2 · 1 · √(2/2) = 2 points."""
    assert ledger.arithmetic_reach(1.0, 2) == pytest.approx(2.0)
    ways = [varied_record(a, isa) for a, isa in ((0.50, "avx2"), (0.50 + math.sqrt(2) / 100, "avx512"))]
    claims = pd.DataFrame(
        {
            "experiment": ["tests/one", "tests/one", "tests/other", "tests/one"],
            "low": [1.9, 2.1, -7.0, math.nan], "high": [5.0, 5.0, -1.9, math.nan], "seeds": [[0, 1]] * 3 + [[]],
        }
    )  # fmt: skip
    found = arithmetic.with_arithmetic(claims, ways)
    assert found["turns"].tolist() == [True, False, True, False]
    assert found["reach"].tolist() == pytest.approx([2.0, 2.0, 2.0, math.nan], nan_ok=True)
    assert not arithmetic.with_arithmetic(claims, [])["turns"].any(), "nothing measured, nothing said"


def test_the_ledger_tells_older_records_apart():
    records = [made(), made(seed=1), made("tests/two", numerics={"isa": "avx512", "revision": 0}), made(numerics={})]
    found = ledger.generations(records).to_dict("records")
    assert [(f["revision"], f["instructions"], f["records"], f["experiments"], f["older"]) for f in found[:1]] == [
        (numerics.REVISION, numerics.in_effect()["isa"], 2, 1, False)
    ]
    assert {f["instructions"]: f["older"] for f in found[1:]} == {"avx512": True, "not recorded": True}


def test_claims_say_it():
    found = ledger.claims([])
    assert {"reach", "turns"} <= set(found.columns)
    assert not found["turns"].any()
