"""Calls in processes give what they give in this one."""

import importlib
import multiprocessing
import os
import sys
import threading
import time
import warnings

import pytest
from small import SMALL_MODEL, ragged
from threadpoolctl import threadpool_info, threadpool_limits

from hetfl_core import compare, numerics, parallel
from hetfl_core.methods import FedAvg, Local
from hetfl_core.parallel import in_order
from hetfl_core.records import environment

forks = pytest.mark.skipif(sys.platform != "linux", reason="processes are forks on Linux alone")
METHODS = {"FedAvg": FedAvg(SMALL_MODEL, local_epochs=1), "Local": Local(SMALL_MODEL, local_epochs=1)}


@pytest.fixture(params=["fork", "loky"])
def how(request, monkeypatch):
    """How processes are begun."""
    if request.param == "fork" and parallel.start_method() != "fork":
        pytest.skip("forks are not safe here")
    monkeypatch.setattr(parallel, "start_method", lambda threads=1: request.param)
    return request.param


@pytest.fixture
def cores(monkeypatch):
    """Two cores, of which nobody else uses one."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setattr(parallel, "usable_cores", lambda: 2)


@pytest.fixture
def slow():
    """A function of no module: processes that call it need not load what is imported above."""

    def slow(number):
        time.sleep(0.3 / (1 + number))  # later ones end earlier
        if number in (5, 7):
            warnings.warn("seven is odd", UserWarning, stacklevel=1)
        return number, os.getpid()

    return slow


def test_results_come_in_order_from_several_processes_and_warnings_with_them(slow, how):
    with pytest.warns(UserWarning, match="seven is odd") as told:
        found = list(in_order(slow, [(i,) for i in range(9)], n_jobs=2))
    assert [str(one.message) for one in told] == ["seven is odd"], "though two calls say so"
    assert [number for number, _ in found] == list(range(9))
    processes = {process for _, process in found}
    assert len(processes) == 2
    assert os.getpid() not in processes


@pytest.mark.nightly
def test_an_error_comes_out_as_it_is_and_ends_the_rest(how):
    def fails(number):
        if number == 1:
            raise ValueError(f"number must not be {number}")
        return number

    with pytest.raises(ValueError, match="number must not be 1") as error:
        list(in_order(fails, [(i,) for i in range(50)], n_jobs=2))
    assert "in fails" in error.value.__notes__[0], "and shows where"
    assert not multiprocessing.active_children()


@forks
def test_a_process_that_is_killed_is_an_error():
    with pytest.raises(RuntimeError, match="worked on call 3 ended with exit code -9"):
        list(in_order(lambda number: number == 2 and os.kill(os.getpid(), 9), [(i,) for i in range(4)], n_jobs=2))
    assert not multiprocessing.active_children()


@forks
def test_a_result_that_cannot_be_sent_is_an_error():
    with pytest.raises(TypeError, match=r"a result cannot be sent to another process: .*lock"):
        list(in_order(lambda number: threading.Lock(), [(0,), (1,)], n_jobs=2))


def _in_order(_):
    threads = {one["num_threads"] for one in threadpool_info()}
    return list(in_order(lambda number: (number, os.getpid()), [(0,), (1,)], n_jobs=2)), os.getpid(), threads


@forks
def test_a_process_of_others_makes_the_calls_itself():
    with multiprocessing.get_context("fork").Pool(1) as others:
        [(found, process, _)] = others.map(_in_order, [0])
    assert found == [(0, process), (1, process)], "it may have no children"


@forks
def test_libraries_use_one_thread_in_each_process():
    with threadpool_limits(2):
        found = list(in_order(_in_order, [(0,), (1,)], n_jobs=2))
        assert [threads for *_, threads in found] == [{1}, {1}]
        assert {one["num_threads"] for one in threadpool_info()} != {1}, "and here as before"


@forks
def test_who_needs_no_more_ends_the_processes(slow):
    found = in_order(slow, [(i,) for i in range(9)], n_jobs=2)
    assert next(found)[0] == 0
    assert len(multiprocessing.active_children()) == 2
    found.close()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(("worth", "elsewhere"), [(1e9, 0), (0.0, 3)])
def test_processes_begin_only_where_the_rest_takes_long(worth, elsewhere, slow, cores, monkeypatch):
    monkeypatch.setattr(parallel, "PAYS", dict.fromkeys(parallel.PAYS, worth))
    found = list(in_order(slow, [(i,) for i in range(4)]))
    assert [number for number, _ in found] == [0, 1, 2, 3]
    assert sum(process != os.getpid() for _, process in found) == elsewhere


def test_what_cannot_be_sent_is_called_here(how, cores, monkeypatch):
    monkeypatch.setattr(parallel, "PAYS", dict.fromkeys(parallel.PAYS, 0.0))
    with open(os.devnull) as file:
        assert list(in_order(lambda n: (n, file.closed), [(i,) for i in range(3)])) == [(i, False) for i in range(3)]


def test_callbacks_are_called_in_this_process(monkeypatch):
    monkeypatch.setattr(parallel, "PAYS", dict.fromkeys(parallel.PAYS, 0.0))
    seen = []
    compare(ragged(widths=(3, 3)), METHODS, seeds=3, rounds=2, on_round=seen.append, progress=False)
    assert [row["round"] for row in seen] == [1, 2] * 3 * len(METHODS)


@pytest.mark.parametrize(("n_jobs", "message"), [(0, "number of processes"), (1.5, "n_jobs must be a whole number")])
def test_numbers_of_processes_are_checked(n_jobs, message):
    with pytest.raises((ValueError, TypeError), match=message):
        compare(ragged(), METHODS, n_jobs=n_jobs)


def test_data_that_depend_on_more_than_their_seed_are_not_compared_over_processes():
    def draw(seed):
        return ragged(widths=(3, 3), seed=int.from_bytes(os.urandom(3), "big"))

    with pytest.raises(ValueError, match=r"federation\(\d\) made other data in another process"):
        compare(draw, METHODS, seeds=3, rounds=1, n_jobs=2, progress=False)


@pytest.mark.nightly
def test_processes_do_not_go_on_with_modules_that_have_changed(how, monkeypatch, tmp_path):
    """As in a notebook: a file is edited and loaded again between two comparisons."""
    module = tmp_path / "mine_of_test_parallel.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    found = []
    for number in (1, 22):
        module.write_text(f"def value(_):\n    return {number}\n")
        importlib.invalidate_caches()
        sys.modules.pop("mine_of_test_parallel", None)
        found.append(list(in_order(importlib.import_module("mine_of_test_parallel").value, [(0,), (1,)], n_jobs=2)))
    assert found == [[1, 1], [22, 22]]


def test_callbacks_and_processes_do_not_go_together():
    with pytest.raises(ValueError, match="expected n_jobs=1 with it, got 2"):
        compare(ragged(), METHODS, on_round=print, n_jobs=2)


def test_cores_are_those_that_this_process_may_use(monkeypatch):
    """By its affinity, and not more than it is told: joblib asks both, and containers."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert 1 <= numerics.usable_cores() <= allowed
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    assert numerics.usable_cores() == 1
    assert environment()["hardware"]["cores"] == 1
