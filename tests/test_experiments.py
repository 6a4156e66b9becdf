import itertools
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small import SMALL_MODEL, ragged, small_experiments

from hetfl_book import experiments, ledger
from hetfl_book.datasets import text
from hetfl_book.experiments import EXPERIMENTS, Experiment, Job, OutOfTime, find, jobs, pending, reproduce, run_job
from hetfl_book.ledger import comparison
from hetfl_book.papers import eeg, experiment, flic
from hetfl_core import Federation, adapt, records, simulate
from hetfl_core.baselines import LDA, Chosen, Pooled
from hetfl_core.datasets import registry
from hetfl_core.datasets.fewer import fewer
from hetfl_core.datasets.recordings import TABLE_S1
from hetfl_core.engine.checkpoint import CheckpointError
from hetfl_core.engine.simulator import Simulator
from hetfl_core.methods import FLIC, Local
from hetfl_core.records import record


@pytest.fixture(autouse=True)
def tiny(monkeypatch, tmp_path):
    """Two small experiments, the second more wanted."""
    two = {"later": {"priority": 2}, "sooner": {"priority": 1}}
    small_experiments(monkeypatch, tmp_path, two, rounds=4, book={"rounds": 1, "pretrain_epochs": 1})


def test_the_papers_tables_have_an_experiment():
    """Every setting of FLIC's tables whose data we can load is an experiment, under the name in data/paper."""
    named = {name for name in ledger.paper_values()["experiment"].dropna() if name.startswith("flic/")}
    assert named - {"flic/femnist-150"} <= set(EXPERIMENTS)


def test_every_experiment_has_a_place_in_the_queue_and_a_title():
    for name, setting in EXPERIMENTS.items():
        assert setting.title, name
        assert setting.dataset, name
        assert set(setting.prepare) <= set(setting.methods), name
        for method in setting.methods:  # refused now, not when a run of hours is to be recorded
            assert record.is_experiment(name), name
            assert record._METHOD.fullmatch(method), (name, method)
    assert len({setting.title for setting in EXPERIMENTS.values()}) == len(EXPERIMENTS)


def test_what_differs_at_paper_scale_differs_at_book_scale():
    """The book scale must not overwrite what an experiment is about."""
    for name, setting in EXPERIMENTS.items():
        paper, book = list(setting.methods.values()), list(setting.at("book").methods.values())
        same = [(a == b, c == d) for a, c in zip(paper, book) for b, d in zip(paper, book)]
        assert all(before == after for before, after in same), name
    k1, k200 = (EXPERIMENTS[f"flic/pretraining-noisy-k{k}"].at("book").methods["FLIC-Class"] for k in (1, 200))
    assert (k1.pretrain_epochs, k200.pretrain_epochs) == (1, 200)
    ablation = EXPERIMENTS["flic/ablation-bci"].at("book")
    assert ablation.methods["FLIC-HL, alpha from round 21"].representation_from < ablation.rounds


def test_no_number_of_a_method_is_larger_at_book_scale():
    """What is switched off by 0 stays off, and what takes long takes no longer."""
    for name, setting in EXPERIMENTS.items():
        book = setting.at("book")
        assert book.rounds <= setting.rounds, name
        for method, short in book.methods.items():
            for option in setting.book.keys() & vars(short).keys():
                assert getattr(short, option) <= getattr(setting.methods[method], option), (name, method, option)


def test_data_placed_by_hand_are_pending_only_where_they_are(tmp_path, monkeypatch):
    monkeypatch.setenv("HETFL_DATA", str(tmp_path))
    assert not experiments.available(EXPERIMENTS["flic/textcaps-b100-c2"])
    (tmp_path / text.CAPTIONS).parent.mkdir(parents=True)
    (tmp_path / text.CAPTIONS).write_text("{}")
    assert experiments.available(EXPERIMENTS["flic/textcaps-b100-c2"])


def test_a_method_may_prepare_its_data():
    def doubled(federation, seed):
        clients = [replace(c, x_train=2 * c.x_train, x_test=2 * c.x_test) for c in federation]
        return Federation(clients, federation.n_classes)

    setting = replace(experiments.find("tests/sooner"), prepare={"Local": doubled})
    plain, prepared = setting.data("FLIC-HL", 0), setting.data("Local", 0)
    torch.testing.assert_close(prepared[0].x_train, 2 * plain[0].x_train)


def test_newcomers_learn_beside_a_run_without_them(tmp_path):
    """Against the two runs and the adaptation done by hand; interrupted after a round, it ends with the same."""
    federation, method = ragged(), find("tests/sooner").methods["FLIC-HL"]
    options = {"rounds": 3, "participation": 0.5, "seed": 1, "progress": False, "device": "cpu", "engine": "loop"}
    joined = flic.with_newcomers(federation, method, **options, share=0.4)
    new = [client.name for client in joined.federation]
    assert len(new) == round(0.4 * len(federation))
    members = federation.subset([client.name for client in federation if client.name not in new])
    run, everyone = simulate(members, method, **options), simulate(federation, method, **options)
    alone = adapt(run, [federation[name] for name in new], rounds=round(0.5 * 3) + 1, engine="loop", progress=False)
    assert joined.final["accuracy"] == alone.final["accuracy"]
    assert joined.final["accuracy_members"] == run.final["accuracy"]
    took_part = everyone.per_client.set_index("client").loc[new, "accuracy"].mean()
    assert joined.final["accuracy_took_part"] == pytest.approx(took_part)
    assert (joined.settings["engine"], joined.settings["share"]) == ("loop", 0.4)
    assert joined.settings["participation_before"] == 0.5

    def stop(row):
        raise OutOfTime

    with pytest.raises(OutOfTime):
        flic.with_newcomers(federation, method, **options, share=0.4, checkpoint=tmp_path, on_round=stop)
    again = flic.with_newcomers(federation, method, **options, share=0.4, checkpoint=tmp_path)
    for name in ("accuracy", "accuracy_members", "accuracy_took_part"):
        assert again.final[name] == joined.final[name]


# --- alone or together (papers/eeg.py) --------------------------------------------------------------------------------


def narrow():
    return ragged(n_clients=6, n_classes=3, widths=(6, 6), sizes=(20, 40))


QUIET = {"rounds": 3, "participation": 0.5, "progress": False, "device": "cpu"}


def test_every_point_of_a_learning_curve_is_an_experiment():
    for source in eeg.SOURCES:
        points = eeg.curve(source)
        assert list(points) == [10, 20, 30, 60, 120, "all"]
        assert set(points.values()) <= set(EXPERIMENTS)
    everything = EXPERIMENTS[eeg.curve("common40")[10]].methods
    assert {"Local", *eeg.FEDERATED, *eeg.ALONE, *eeg.POOLED, "Best by cross-validation"} <= set(everything)
    assert "FedRep" not in EXPERIMENTS["eeg/simulated-54"].methods, "there is no common feature space"
    longer = {name: method for name, method in everything.items() if name.endswith(", 100 epochs")}
    assert set(longer) == {f"{name}, 100 epochs" for name in ("Local", "FLIC-Class", "FedRep")}
    assert {method.local_epochs for method in longer.values()} == {100}
    assert "FedRep, 100 epochs" not in eeg.longer(flic.methods())
    assert set(longer).isdisjoint(EXPERIMENTS[eeg.curve("common40")[20]].methods)


def test_a_point_of_a_curve_draws_its_trials_by_the_seed():
    source = eeg.SOURCES["common40"]._replace(data=narrow)
    few, more = (eeg._trials(source, n)(0) for n in (6, 12))
    for a, b in zip(few, more, strict=True):
        assert (a.n_train, b.n_train) == (6, 12)
        assert {tuple(x) for x in a.x_train.tolist()} < {tuple(x) for x in b.x_train.tolist()}
    assert eeg._trials(source, 6)(1).fingerprint() != few.fingerprint()
    assert eeg._trials(source, None)(1).fingerprint() == narrow().fingerprint()


def test_baselines_run_as_experiments_and_their_records_hold_each_client(tmp_path, monkeypatch):
    pytest.importorskip("pyriemann")
    methods = {
        "LDA": LDA(),
        "Best by cross-validation": Chosen((LDA(),)),
        "Pooled LDA": Pooled(),
        "Local": Local(SMALL_MODEL),
    }
    setting = Experiment("made", lambda seed: narrow(), methods, 2, 0.5, dataset="toy.noisy_features")
    monkeypatch.setitem(experiments.EXPERIMENTS, "tests/alone", setting)
    written = [ledger.read(path) for _, path in reproduce(jobs("tests/alone", "paper", 1), tmp_path, progress=False)]
    assert [r.method for r in written] == list(methods)
    direct = simulate(narrow(), LDA())
    assert written[0].metrics["accuracy"] == direct.final["accuracy"]
    assert written[0].per_client["client"] == [c.name for c in narrow()]
    assert written[0].per_client["accuracy"] == pytest.approx(direct.per_client["accuracy"].tolist(), abs=1e-5)
    assert written[1].settings["method"] == {"class": "Chosen", "among": [{"class": "LDA"}], "folds": 5}
    assert written[3].metrics["accuracy"] == pytest.approx(sum(written[3].per_client["accuracy"]) / 6, abs=1e-5)
    assert len({r.federation["fingerprint"] for r in written}) == 1


def test_everyone_is_left_out_once():
    federation = ragged(n_clients=23)
    folds = [eeg.left_out(federation, seed) for seed in range(10)]
    assert sorted(name for fold in folds for name in fold) == sorted(c.name for c in federation)
    assert {len(fold) for fold in folds} == {2, 3}
    assert eeg.left_out(federation, 10) == folds[0]
    ordered = sorted(c.name for c in federation)
    assert all(ordered[i] in folds[i % 10] for i in range(23)), "neighbours by name are in different folds"


def test_latecomers_learn_from_their_few_trials(monkeypatch):
    """Against the run without them, and the adaptation to each number of trials, done by hand; by a clock of ticks."""
    ticks = itertools.count()
    monkeypatch.setattr("time.perf_counter", lambda: float(next(ticks)))
    federation, method = narrow(), FLIC(model=SMALL_MODEL, local_epochs=1, pretrain_epochs=2)
    joined = eeg.with_latecomers(federation, method, seed=1, trials=(6, None), folds=3, **QUIET)
    new = eeg.left_out(federation, 1, 3)
    run = simulate(federation.subset([c.name for c in federation if c.name not in new]), method, seed=1, **QUIET)
    few = adapt(run, [fewer(federation[name], 6, 1) for name in new], rounds=3, progress=False)
    every = adapt(run, [federation[name] for name in new], rounds=3, progress=False)
    assert joined.final["accuracy_n6"] == few.final["accuracy"]
    assert joined.final["accuracy"] == joined.final["accuracy_nall"] == every.final["accuracy"]
    alone = few.final["seconds"] + every.final["seconds"]
    assert joined.final["seconds"] == run.final["seconds"] + alone, "the others' training counts"
    assert (joined.settings["participation"], joined.settings["participation_before"]) == (1.0, 0.5)
    assert joined.per_client["n"].tolist() == [6, 6, "all", "all"]
    assert joined.per_client["n_train"].tolist()[:2] == [6, 6]
    record = ledger.RunRecord.of(joined, "eeg/made", "own", method="FLIC-HL")
    assert comparison.table([record])["n"].tolist() == [6, 6, "all", "all"]


def test_latecomers_alone_and_pooled():
    pytest.importorskip("pyriemann")
    federation = narrow()
    new = eeg.left_out(federation, 0, 3)
    alone = eeg.with_latecomers(federation, LDA(), seed=0, trials=(6, None), folds=3, **QUIET)
    direct = simulate(Federation([fewer(federation[name], 6, 0) for name in new], 3), LDA())
    assert alone.final["accuracy_n6"] == direct.final["accuracy"]
    pooled = eeg.with_latecomers(federation, Pooled(), seed=0, trials=(6, None), folds=3, **QUIET)
    members = federation.subset([c.name for c in federation if c.name not in new])
    for name in new:
        one = Federation([*members, federation[name]], 3, members.name, members.info)
        accuracy = simulate(one, Pooled()).per_client.set_index("client")["accuracy"]
        got = pooled.per_client[pooled.per_client["n"] == "all"].set_index("client")["accuracy"]
        assert got[name] == accuracy[name]
    assert pooled.per_client["n_train"].tolist()[:2] == [0, 0]
    assert alone.federation.fingerprint() == pooled.federation.fingerprint()


def test_recordings_are_at_hand_when_each_data_set_has_a_file(tmp_path, monkeypatch):
    pytest.importorskip("mne")
    monkeypatch.setenv("MNE_DATA", str(tmp_path))
    assert not flic.recordings_present()
    files = ["MNE-alexeeg-data/a.fif", *(f"MNE-bnci-data/00{k}-2014/a.mat" for k in (1, 2, 4)), "MNE-weibo-2014/a.mat"]
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    (tmp_path / "MNE-zhou2016-data").mkdir()
    assert not flic.recordings_present(), "a folder without files is what a failed download leaves"
    (tmp_path / "MNE-zhou2016-data/a.edf").touch()
    assert flic.recordings_present()
    (tmp_path / "MNE-bnci-data/002-2014/a.mat").unlink()
    assert flic.recordings_present(40), "40 subjects are those without BNCI2014-002"
    assert not flic.recordings_present(54)
    at_hand = [EXPERIMENTS[f"flic/bci-{b}"].files_present() for b in (54, 40)]
    assert at_hand == [False, True]


def test_the_recorded_federations_have_the_papers_reference_points(monkeypatch):
    seen = []
    monkeypatch.setattr(flic.eeg, "recorded", lambda kind, **settings: seen.append((kind, settings)))
    for b in (54, 40):
        EXPERIMENTS[f"flic/bci-{b}"].federation(3)
    settings = {"reference": "all", "seed": 0, "classes_per_client": 2}
    assert seen == [("specific", {"b": b, **settings}) for b in (54, 40)]
    assert set(flic.RECORDED) == set(TABLE_S1)


# --- ablations --------------------------------------------------------------------------------------------------------


def test_a_frozen_embedding_stays_as_the_pre_training_left_it():
    options = {"model": SMALL_MODEL, "local_epochs": 1, "pretrain_epochs": 2}
    runs = {
        family: simulate(ragged(), family(**options), rounds=2, participation=0.5, progress=False)
        for family in (FLIC, flic.FrozenEmbedding)
    }
    start = Simulator(ragged(), FLIC(**options))
    outcomes = start.train(start.initial(), range(len(start.specs)), 0, "start")
    for i, outcome in outcomes.items():
        frozen, updated = (runs[family].params[i]["phi.0.weight"] for family in (flic.FrozenEmbedding, FLIC))
        torch.testing.assert_close(frozen, outcome.client_state["phi.0.weight"], rtol=0, atol=0)
        assert not torch.equal(updated, frozen)


def test_the_realigned_hetfedrep_moves_its_anchors():
    """As in the published code, where anchors are updated whatever aligns the embeddings to them."""
    method = EXPERIMENTS["flic/ablation-bci"].methods["HetFedRep, realigned"]
    small = replace(method, model=SMALL_MODEL, local_epochs=1)
    run = simulate(ragged(), small, rounds=2, participation=0.5, progress=False)
    start = Simulator(ragged(), small).initial().server["anchor.mean"]
    assert (run.server["anchor.mean"] - start).abs().max() > 1e-4


def test_flic_settings_are_those_of_the_text():
    """FLIC, Section 6 and Appendix S3.3."""
    setting = EXPERIMENTS["flic/bci-common40"]
    assert (setting.rounds, setting.participation) == (50, 0.1)
    assert list(setting.methods) == ["Local", "FedHeNN", "FedRep", "HetFedRep", "FLIC-Class", "FLIC-HL"]
    flic = setting.methods["FLIC-HL"]
    assert (flic.local_epochs, flic.batch_size, flic.lr) == (10, 100, 1e-3)
    assert (flic.alignment_weight, flic.anchor_weight, flic.pretrain_epochs, flic.pretrain_batch) == (
        1e-3,
        1e-3,
        100,
        100,
    )
    assert EXPERIMENTS["flic/toy-noisy"].methods["FLIC-HL"].pretrain_batch == 10


def test_book_scale_changes_what_it_says_and_only_that():
    book = find("tests/sooner").at("book")
    assert book.rounds == 1
    assert book.methods["FLIC-HL"].pretrain_epochs == 1
    assert book.methods["FLIC-HL"].local_epochs == 1
    assert book.methods["Local"] == find("tests/sooner").methods["Local"]
    assert find("tests/sooner").at("paper").rounds == 4


def test_unknown_names_get_the_nearest():
    with pytest.raises(KeyError, match="no experiment is called 'tests/soner'; did you mean tests/sooner"):
        find("tests/soner")
    with pytest.raises(KeyError, match="no method of tests/sooner is called 'FLIC'; did you mean FLIC-HL"):
        jobs("tests/sooner", "book", 1, ["FLIC"])
    for seeds in (0, True, [True], "3", [-1], ["0"], [], [1, 1]):
        with pytest.raises((ValueError, TypeError), match="seeds must be a"):
            jobs("tests/sooner", "book", seeds)
    with pytest.raises(ValueError, match=r"scale must be one of \('book', 'paper'\), got 'Paper'"):
        jobs("tests/sooner", "Paper")


def test_pending_is_in_the_order_wanted_and_loses_what_has_a_record(tmp_path):
    todo = pending("book", 2, tmp_path)
    assert [(j.experiment, j.seed, j.method) for j in todo[:3]] == [
        ("tests/sooner", 0, "Local"),
        ("tests/sooner", 0, "FLIC-HL"),
        ("tests/sooner", 1, "Local"),
    ]
    assert len(todo) == 8
    for job, path in reproduce(todo[:1], tmp_path, progress=False):
        assert path == tmp_path / job.relative_path
    assert pending("book", 2, tmp_path) == todo[1:]


def test_a_record_of_other_settings_is_pending_again_and_replaced(tmp_path, monkeypatch):
    """An experiment that is defined anew must not keep what was run by its old definition."""
    job = Job("tests/sooner", "book", "Local", 0)
    list(reproduce([job], tmp_path, progress=False))
    (record,) = ledger.load(tmp_path)
    assert not experiments.outdated(record)
    assert job not in pending("book", 2, tmp_path)
    old = experiments.EXPERIMENTS["tests/sooner"]
    changed = {**old.methods, "Local": replace(old.methods["Local"], lr=0.123)}
    monkeypatch.setitem(experiments.EXPERIMENTS, "tests/sooner", replace(old, methods=changed))
    assert experiments.outdated(record)
    assert job in pending("book", 2, tmp_path)
    list(reproduce([job], tmp_path, progress=False))
    (record,) = ledger.load(tmp_path)
    assert record.settings["method"]["lr"] == 0.123
    assert not experiments.outdated(replace(record, settings={}))
    assert not experiments.outdated(replace(record, method="of old"))


def test_no_record_here_is_of_settings_that_its_experiment_has_given_up():
    assert {(r.experiment, r.method) for r in ledger.load() if experiments.outdated(r)} == set()


def test_data_that_are_not_at_hand_are_not_pending(tmp_path, monkeypatch):
    monkeypatch.setenv("HETFL_DATA", str(tmp_path))
    monkeypatch.setattr(experiments, "EXPERIMENTS", EXPERIMENTS)
    names = {job.experiment for job in pending("paper", 1, tmp_path)}
    assert names
    assert {name for name in names if registry.needs(EXPERIMENTS[name].dataset)} == set()


def test_a_record_says_what_was_run(tmp_path):
    job = Job("tests/sooner", "paper", "FLIC-HL", 1)
    [(_, path)] = list(reproduce([job], tmp_path, progress=False))
    record = ledger.read(path)
    assert (record.experiment, record.scale, record.method, record.seed) == ("tests/sooner", "paper", "FLIC-HL", 1)
    assert record.settings["method"]["alignment_weight"] == 1e-3
    assert record.settings["method"]["model"]["phi"] == {
        "class": "MLP", "hidden": [6], "out": 4, "activation": "relu", "dropout": 0.0, "last": None,
    }  # fmt: skip
    assert record.settings["rounds"] == 4
    assert len(record.history["round"]) == 5
    assert record.federation["fingerprint"] == ragged(seed=1).to(torch.float32).fingerprint()
    assert 0 <= record.metrics["accuracy"] <= 1
    assert not job.scratch().exists(), "the checkpoint of a finished run is removed"


def test_a_budget_stops_after_a_round_and_the_next_call_resumes(tmp_path, monkeypatch):
    """The clock jumps past the budget in the middle of the run."""
    job = Job("tests/sooner", "paper", "FLIC-HL", 0)
    clock = iter([0.0, 0.0, 1.0, 99.0, *[100.0] * 50])
    with monkeypatch.context() as patch:
        patch.setattr(experiments.time, "monotonic", lambda: next(clock))
        assert list(reproduce([job, job], tmp_path, budget=10, progress=False)) == [(job, None)]
    assert job.scratch().exists()
    seen = []
    real = experiment.simulate
    monkeypatch.setattr(
        experiment, "simulate", lambda *a, **k: real(*a, **{**k, "on_round": lambda r: seen.append(r["round"])})
    )
    [(_, path)] = list(reproduce([job], tmp_path, progress=False))
    assert seen[0] == 3, "rounds 1 and 2 are not run again"
    again = run_job(job, progress=False)
    assert {k: v for k, v in ledger.read(path).metrics.items() if k != "seconds"} == {
        k: v for k, v in again.metrics.items() if k != "seconds"
    }


def test_what_has_a_record_is_not_run_again_unless_asked(tmp_path, monkeypatch):
    job = Job("tests/sooner", "book", "Local", 0)
    list(reproduce([job], tmp_path, progress=False))
    runs = []
    real = experiments.run_job
    monkeypatch.setattr(experiments, "run_job", lambda *a, **k: runs.append(a) or real(*a, **k))
    lock = Path(f"{job.scratch()}.lock")
    lock.unlink(missing_ok=True)
    list(reproduce([job], tmp_path, progress=False))
    assert runs == []
    assert not lock.exists(), "nothing is claimed that is done"
    list(reproduce([job], tmp_path, progress=False, again=True))
    assert len(runs) == 1


def test_running_again_within_a_budget_ends_after_some_calls(tmp_path, monkeypatch):
    """Each call goes on where the last one stopped, until there is a newer record."""
    job = Job("tests/sooner", "paper", "FLIC-HL", 0)
    list(reproduce([job], tmp_path, progress=False))
    first, stopped = (tmp_path / job.relative_path).stat().st_mtime_ns, 0
    path = None
    while path is None and stopped < 10:
        clock = iter([0.0, 0.0, *[100.0] * 50])
        monkeypatch.setattr(experiments.time, "monotonic", lambda clock=clock: next(clock))
        [(_, path)] = list(reproduce([job], tmp_path, budget=10, again=True, progress=False))
        stopped += path is None
    assert stopped == 4, "one round a call; the next call ends the run"
    assert (tmp_path / job.relative_path).stat().st_mtime_ns > first


def test_again_runs_a_job_once_however_many_processes(tmp_path):
    todo = jobs("tests/sooner", "book", 1)
    list(reproduce(todo, tmp_path, progress=False))
    working = reproduce(todo, tmp_path, again=True, progress=False)
    next(working)  # the first is done again; now another process does all
    list(reproduce(todo, tmp_path, again=True, progress=False))
    written = (tmp_path / todo[1].relative_path).stat().st_mtime_ns
    assert [job for job, _ in working] == todo[1:]
    assert (tmp_path / todo[1].relative_path).stat().st_mtime_ns == written


def test_a_damaged_checkpoint_does_not_keep_the_others_from_running(tmp_path):
    todo = jobs("tests/sooner", "book", 1)
    todo[0].scratch().mkdir(parents=True)
    (todo[0].scratch() / "state.safetensors").write_bytes(b"nothing")
    done = []
    with pytest.raises(CheckpointError, match="damaged"):
        done.extend(job for job, _ in reproduce(todo, tmp_path, progress=False))
    assert (tmp_path / todo[1].relative_path).exists()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("spoil", ["nothing in it", "another method", "another seed", "text for numbers", "deep"])
def test_a_file_that_is_no_record_is_not_taken_for_one_and_the_others_run(tmp_path, spoil, again):
    first, second = jobs("tests/sooner", "book", 1)
    list(reproduce([first], tmp_path / "whole", progress=False))
    record = ledger.read(tmp_path / "whole" / first.relative_path)
    text = {
        "nothing in it": "",
        "another method": ledger.to_json(replace(record, method="FLIC-HL")),
        "another seed": ledger.to_json(replace(record, seed=7)),
        "text for numbers": ledger.to_json(record).replace('"round":[0,', '"round":["0",'),
        "deep": ledger.to_json(record).replace('"dirty":', '"dirty":' + 3000 * "["),
    }[spoil]
    assert text != ledger.to_json(record)
    path = tmp_path / first.relative_path
    path.parent.mkdir(parents=True)
    path.write_text(text)
    done = []
    with pytest.raises(experiments.DamagedRecord, match=r"Local-seed0\.json"):
        done.extend(job for job, _ in reproduce([first, second], tmp_path, progress=False, again=again))
    assert done == [second]
    assert path.read_text() == text


def test_a_packed_record_is_done_and_run_again_if_asked(tmp_path):
    todo = jobs("tests/sooner", "book", 1)
    list(reproduce(todo, tmp_path, progress=False))
    [packed] = records.pack(tmp_path)
    assert list(reproduce(todo, tmp_path, progress=False)) == [(job, packed) for job in todo]
    assert set(todo).isdisjoint(pending("book", 1, tmp_path))
    again = list(reproduce(todo[:1], tmp_path, progress=False, again=True))
    assert again == [(todo[0], tmp_path / todo[0].relative_path)]
    assert len(ledger.load(tmp_path)) == 2
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(experiments.DamagedRecord, match=r"tests/sooner\.jsonl, line 2,"):
        list(reproduce(todo, tmp_path, progress=False))


def test_processes_share_the_jobs(tmp_path):
    """What another process is at is left out, and what it has finished meanwhile is not run again."""
    first, second = jobs("tests/sooner", "book", 1)
    working = reproduce([first, second], tmp_path, progress=False)
    with ExitStack() as claim:
        assert experiments._claimed(second, claim)
        assert [job for job, _ in working] == [first]
    written = (tmp_path / first.relative_path).stat().st_mtime_ns
    assert [job for job, _ in reproduce([first, second], tmp_path, progress=False)] == [first, second]
    assert (tmp_path / first.relative_path).stat().st_mtime_ns == written


def test_a_killed_process_leaves_its_job_to_others(tmp_path):
    [job, _] = jobs("tests/sooner", "book", 1)
    script = (
        "import sys, time; from filelock import FileLock; lock = FileLock(sys.argv[1]); lock.acquire(); "
        "print('held', flush=True); time.sleep(60)"
    )
    job.scratch().parent.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(
        [sys.executable, "-c", script, f"{job.scratch()}.lock"], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert list(reproduce([job], tmp_path, progress=False)) == []
        other.kill()
    assert list(reproduce([job], tmp_path, progress=False)) == [(job, tmp_path / job.relative_path)]


def test_out_of_time_names_the_job():
    with pytest.raises(OutOfTime, match="stopped after round 1 of 4"):
        run_job(Job("tests/sooner", "paper", "Local", 0), deadline=0.0, progress=False)


def test_data_that_took_the_time_are_not_trained_on_where_nothing_is_resumed(monkeypatch):
    monkeypatch.setattr(experiment, "simulate", lambda *arguments, **options: pytest.fail("trained"))
    with pytest.raises(OutOfTime, match="stopped after round 0 of 4"):
        run_job(Job("tests/sooner", "paper", "Local", 0), deadline=0.0, progress=False, resume=False)


def test_the_papers_numbers_know_the_experiments():
    """Which the ledger has to be told of (`known`)."""
    assert experiments.numbers([]).equals(ledger.numbers([], known=experiments.known()))
    assert experiments.claims([]).equals(ledger.claims([], known=experiments.known()))


def test_what_another_process_ended_meanwhile_is_not_run_again(tmp_path, monkeypatch):
    """Its record is written after the first look, before the claim."""
    todo, claimed, ran = jobs("tests/sooner", "book", 2, ["Local"]), experiments._claimed, []

    def late(job, claim):
        monkeypatch.setattr(experiments, "_claimed", claimed)
        list(reproduce([todo[0]], tmp_path, progress=False))
        return claimed(job, claim)

    monkeypatch.setattr(experiments, "_claimed", late)
    with monkeypatch.context() as patch:
        patch.setattr(experiments, "run_job", lambda job, **options: ran.append(job) or run_job(job, **options))
        found = [*reproduce(todo, tmp_path, progress=False)]
    assert [job for job, _ in found] == todo
    assert ran == [todo[0], todo[1]], "the first by the other process"
