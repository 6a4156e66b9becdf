"""The processes of a run: the same bits from however many, and none is left, whatever happens."""

import faulthandler
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small import equal_histories, largest_difference, ragged

from hetfl_core import Client, Federation, parallel, simulate, simulate_seeds
from hetfl_core.engine import layout, pool
from hetfl_core.engine.layout import CPU, GPU, Layout, Work, cut
from hetfl_core.engine.pool import Pool, wire_of
from hetfl_core.engine.simulator import Simulator
from hetfl_core.methods import FLIC, FedAvg, Local
from hetfl_core.networks import MLP, Model

PHI = MLP(hidden=(9,), out=6)
OPTIONS = {"rounds": 2, "stack_size": 2, "progress": False, "device": "cpu"}
CLIENTS = ragged(widths=(4, 4))
METHOD = FedAvg(Model(PHI), local_epochs=1, batch_size=5)
HERE = Path(__file__).parent
forks = pytest.mark.skipif(sys.platform != "linux", reason="processes are forks on Linux alone")


def elsewhere():
    """Whether this is a process of a run."""
    return isinstance(multiprocessing.process.current_process(), multiprocessing.context.ForkProcess)


def script(text, *arguments, **options):
    """A fresh process that runs a program among the tests' modules."""
    paths = [str(HERE), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", text, *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


# --- bits -----------------------------------------------------------------------------------------------------------

DIGESTS = """
import hashlib, os, sys
import numpy as np
from small import ragged
from hetfl_core import Client, Federation, simulate
from hetfl_core.engine import steps
from hetfl_core.methods import FLIC, FedAvg
from hetfl_core.networks import MLP, Model

def digest(run):
    known = hashlib.blake2b(run.history.drop(columns="seconds").to_json().encode())
    for tensors in (run.server, *run.client_states, *run.params):
        for name, p in tensors.items():
            known.update(name.encode() + p.numpy().tobytes())
    return known.hexdigest()

rng = np.random.default_rng(0)
y = np.arange(12) % 3
x = [rng.normal(size=(12, 900)) + y[:, None] for _ in range(33)]
wide = [Client(a, y, a[:2], y[:2], f"c{i}") for i, a in enumerate(x)]
small = FLIC(Model(MLP((9,), 6)), local_epochs=1, batch_size=6, pretrain_epochs=4, pretrain_batch=4)
large = FedAvg(Model(MLP((), 64)), local_epochs=7, batch_size=4, optimizer="adam", lr=0.01)
for workers in sys.argv[1:]:
    if os.fork():  # a copy that has computed nothing yet
        os.wait()
        continue
    options = {"workers": int(workers), "progress": False, "device": "cpu"}
    one = digest(simulate(ragged(9), small, rounds=1, stack_size=2, **options))
    two = digest(simulate(Federation(wide, 3), large, rounds=1, **options))
    print(workers, one, two, flush=True)
    os._exit(0)
"""


@pytest.mark.nightly
@forks
def test_bits_do_not_depend_on_the_number_of_processes():
    """In fresh processes, so that nothing is recorded before."""
    counts = ["1", "2", "3", "5", "8"]
    lines = [line.split() for line in script(DIGESTS, *counts).communicate()[0].splitlines()]
    assert [workers for workers, *_ in lines] == counts
    assert len({tuple(digests) for _, *digests in lines}) == 1, lines


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_stacks_of_large_networks_are_cut_and_no_bit_changes(optimizer, monkeypatch):
    """Blocks of 16 end where a kernel's last numbers, which it may round otherwise, end in the whole stack, too."""
    monkeypatch.setattr(layout, "CPU", replace(layout.CPU, weights=0.0))
    federation = ragged(41, widths=(7, 7), sizes=(10, 40))
    for method in (
        Local(Model(PHI), local_epochs=3, batch_size=10, optimizer=optimizer, lr=0.01),
        FLIC(Model(PHI), local_epochs=1, batch_size=10, pretrain_epochs=3, pretrain_batch=10, optimizer=optimizer),
    ):
        options = {"rounds": 1, "progress": False, "device": "cpu"}
        [way] = Simulator(federation, method, device="cpu").layouts
        assert cut(41, way) == [16, 25]
        whole = simulate(federation, method, stack_size=1024, **options)
        assert largest_difference(whole, simulate(federation, method, workers=2, **options)) == 0


def test_runs_side_by_side_share_processes():
    federations = {seed: ragged(5, widths=(4, 4), seed=seed) for seed in (3, 5)}
    found = [simulate_seeds(federations.get, METHOD, seeds=(3, 5), workers=workers, **OPTIONS) for workers in (1, 3)]
    for seed in federations:
        assert largest_difference(found[0][seed], found[1][seed]) == 0


def test_validation_samples_and_last_steps_are_looked_at_in_processes_too():
    other = Federation([replace(c, x_test=c.x_train, y_test=c.y_train) for c in CLIENTS], 5)
    options = {**OPTIONS, "validation": other, "last_step": "own", "metric": ["own", "auc", "held"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of clients whose test samples are of one class
        one, two = (simulate(CLIENTS, METHOD, workers=workers, **options) for workers in (1, 2))
    assert equal_histories(one.history, two.history)
    assert one.final | {"seconds": 0} == pytest.approx(two.final | {"seconds": 0}, rel=0, abs=0, nan_ok=True)


@pytest.mark.nightly
def test_a_process_that_computed_on_several_threads_before_is_forked_all_the_same():
    text = """
import torch
torch.set_num_threads(2)
torch.rand(600, 600) @ torch.rand(600, 600)
torch.linalg.eigh(torch.rand(200, 200, dtype=torch.float64))
from small import ragged
from hetfl_core import simulate
from hetfl_core.methods import FedHeNN
from hetfl_core.networks import MLP, Model
simulate(ragged(), FedHeNN(Model(MLP((9,), 6))), rounds=1, stack_size=2, workers=2, progress=False, device="cpu")
print("done")
"""
    assert script(text).communicate(timeout=300)[0] == "done\n"


# --- which stacks there are -----------------------------------------------------------------------------------------


def test_stacks_are_cut_by_what_their_steps_compute_and_never_by_the_cores():
    whole = Layout("stacked", 1024)
    assert cut(100, whole) == [100]
    assert cut(100, replace(whole, size=40)) == [40, 40, 20]
    even = replace(whole, even="all alike")
    assert [cut(n, even) for n in (5, 31, 32, 100)] == [[5], [31], [16, 16], [16] * 5 + [20]]
    assert cut(100, replace(even, size=40)) == [16, 24, 16, 24, 20]


def test_large_networks_and_long_steps_are_cut_and_convolutions_are_not():
    assert [layout.divisible(Work(0.0, n, operations=1.0), CPU) for n in (50_000, 50_001)] == [False, True]
    assert [layout.divisible(Work(0.0, 9, operations=f), CPU) for f in (1e7, 1.1e7)] == [False, True]
    assert not layout.divisible(Work(1.0, 10**6, operations=1e9), CPU)
    assert not layout.divisible(Work(0.0, 10**6, operations=1e9), GPU)
    assert layout.divisible(Work(0.0, 25_001, operations=1.0), CPU, itemsize=8)


def test_only_stacks_that_are_padded_nowhere_are_cut(monkeypatch):
    def way(federation, **options):
        return Simulator(federation, Local(Model(PHI), batch_size=10), device="cpu", **options).layouts[0]

    even = ragged(8, widths=(4, 4), sizes=(10, 30))
    assert way(even).even is None, "of small networks"
    monkeypatch.setattr(layout, "CPU", replace(layout.CPU, weights=0.0))
    assert way(even).even is not None
    assert way(ragged(8, widths=(4, 4), sizes=(5, 30))).even is None, "some have less than a batch"
    assert way(ragged(8, widths=(4, 6), sizes=(10, 30))).even is None
    assert way(even, stack_size=100).even is None, "as it was asked for"
    assert way(even, engine="loop").even is None


# --- when there are processes ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Where(FedAvg):
    """Says who trained a client."""

    def upload(self, params, received, data, memory):
        return {**super().upload(params, received, data, memory), "process": torch.tensor([os.getpid()])}

    def init_server(self, specs, rng):
        return {**super().init_server(specs, rng), "process": torch.tensor([0])}

    def download(self, server, spec):
        return {name: p for name, p in server.items() if name != "process"}

    def aggregate(self, server, uploads, weights, specs, rng):
        plain = [{name: p for name, p in sent.items() if name != "process"} for sent in uploads]
        new = super().aggregate(server, plain, weights, specs, rng)
        return {**new, "process": torch.cat([sent["process"] for sent in uploads]).unique()[:1]}


WHERE = Where(Model(PHI), local_epochs=1, batch_size=5)


def begun(monkeypatch, **options):
    """Whether a run began processes."""
    made = []
    begin = Pool.begin
    monkeypatch.setattr(Pool, "begin", lambda self, number: (made.append(number), begin(self, number)))
    simulate(CLIENTS, METHOD, **OPTIONS | options)
    monkeypatch.undo()
    return bool(made)


def test_a_run_that_is_soon_over_begins_no_process(monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setattr(parallel, "usable_cores", lambda: 2)
    assert not begun(monkeypatch)


def test_a_run_that_takes_longer_does(monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setattr(parallel, "usable_cores", lambda: 2)
    monkeypatch.setattr(parallel, "PAYS", dict.fromkeys(parallel.PAYS, 0.0))
    monkeypatch.setattr(pool, "LEAST", 0.0)
    assert begun(monkeypatch)


def test_small_work_stays_here(monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setattr(parallel, "usable_cores", lambda: 2)
    monkeypatch.setattr(parallel, "PAYS", dict.fromkeys(parallel.PAYS, 0.0))
    monkeypatch.setattr(pool, "LEAST", 1e9)
    assert not begun(monkeypatch)


def test_as_many_processes_as_cores_but_one_where_several_are_at_work(monkeypatch):
    cpu = torch.device("cpu")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setattr(parallel, "usable_cores", lambda: 8)
    assert [pool.most_processes(None, threads, cpu) for threads in (1, 3, 16)] == [8, 2, 1]
    assert [pool.most_processes(workers, 1, cpu) for workers in (1, 3)] == [1, 3]
    assert pool.most_processes(3, 1, torch.device("meta")) == 1
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    assert [pool.most_processes(workers, 1, cpu) for workers in (None, 3)] == [1, 3]


def _processes(_):
    return [pool.most_processes(workers, 1, torch.device("cpu")) for workers in (None, 3)]


@forks
def test_a_process_of_others_begins_none(monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setattr(parallel, "usable_cores", lambda: 8)
    with multiprocessing.get_context("fork").Pool(1) as others:
        assert others.map(_processes, [0]) == [[1, 1]], "it may have no children"


@pytest.mark.parametrize(
    ("system", "threads", "gpu", "method"),
    [
        ("linux", 1, False, "fork"),
        ("linux", 2, False, "loky"),
        ("linux", 1, True, "loky"),
        ("darwin", 1, False, "loky"),
    ],
)
def test_forks_only_where_they_are_safe(monkeypatch, system, threads, gpu, method):
    monkeypatch.setattr(parallel.sys, "platform", system)
    monkeypatch.setattr(parallel.torch.accelerator, "is_available", lambda: gpu)
    assert parallel.start_method(threads) == method


def test_clients_are_trained_elsewhere_and_a_simulator_alone_computes_here():
    run = simulate(CLIENTS, WHERE, workers=2, **OPTIONS)
    assert run.server["process"].item() not in (0, os.getpid())
    simulator = Simulator(CLIENTS, WHERE, workers=2, stack_size=2, device="cpu")
    state, _ = simulator.round(simulator.initial(), range(6))
    assert state.server["process"].item() == os.getpid()
    with Pool([simulator], 2):
        state, _ = simulator.round(simulator.initial(), range(6))
    assert state.server["process"].item() != os.getpid()
    assert not multiprocessing.active_children()


# --- processes that are begun anew ----------------------------------------------------------------------------------


@pytest.mark.nightly
def test_processes_that_are_no_forks_give_the_same(monkeypatch):
    @dataclass(frozen=True)
    class Mine(Where):
        """Of this function, as a notebook's are of no module that another process could import."""

    one = simulate(CLIENTS, METHOD, workers=1, **OPTIONS)
    monkeypatch.setattr(parallel, "start_method", lambda threads=1: "loky")
    two = simulate(CLIENTS, Mine(Model(PHI), local_epochs=1, batch_size=5), workers=2, **OPTIONS)
    assert two.server.pop("process").item() not in (0, os.getpid())
    assert largest_difference(one, two) == 0
    assert not multiprocessing.active_children()


def test_what_cannot_be_sent_to_another_process_is_done_here(monkeypatch):
    monkeypatch.setattr(parallel, "start_method", lambda threads=1: "loky")
    simulator = Simulator(CLIENTS, replace(METHOD), stack_size=2, device="cpu")
    object.__setattr__(simulator.method, "held", threading.Lock())
    with Pool([simulator], 2), pytest.warns(RuntimeWarning, match="cannot be sent to other processes"):
        state, _ = simulator.round(simulator.initial(), range(6))
    assert state.done == 1


# --- what goes wrong ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ending(FedAvg):
    """Ends the process that trains a client with few samples."""

    how: int = 9

    def upload(self, params, received, data, memory):
        if elsewhere() and len(data.y) == min(client.n_train for client in CLIENTS):
            faulthandler.disable()  # pytest's would print the stack of this process, as if it were a fault
            os.kill(os.getpid(), self.how)
        return super().upload(params, received, data, memory)


@forks
@pytest.mark.parametrize("how", [9, signal.SIGSEGV])
def test_a_process_that_ends_is_an_error_that_names_its_clients(how):
    fewest = min(CLIENTS, key=lambda client: client.n_train).name
    method = Ending(Model(PHI), local_epochs=1, how=int(how))
    with pytest.raises(RuntimeError, match=f"worked on client.*{fewest}.* ended with exit code -{int(how)}"):
        simulate(CLIENTS, method, workers=2, **OPTIONS)
    assert not multiprocessing.active_children()


class Odd(Exception):
    """Cannot be made again of its arguments."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


@dataclass(frozen=True)
class Failing(FedAvg):
    """Fails, or warns, on one client."""

    what: str = "error"

    def upload(self, params, received, data, memory):
        if len(data.y) == min(client.n_train for client in CLIENTS):
            if self.what == "warning":
                warnings.warn("few samples", UserWarning, stacklevel=1)
            elif self.what == "odd":
                raise Odd(1, 2)
            else:
                raise {"error": KeyError, "gone": ConnectionResetError}[self.what]("few samples")
        return super().upload(params, received, data, memory)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("what", "kind"), [("error", KeyError), ("gone", ConnectionError), ("odd", (Odd, RuntimeError))]
)
def test_an_error_names_the_clients_and_shows_where_it_was_raised(workers, what, kind):
    fewest = min(CLIENTS, key=lambda client: client.n_train).name
    with pytest.raises(kind) as caught:
        simulate(CLIENTS, Failing(Model(PHI), local_epochs=1, what=what), workers=workers, **OPTIONS)
    notes = "\n".join(caught.value.__notes__)
    assert fewest in notes
    assert ("in upload" in notes and "Traceback" in notes) == (workers > 1)
    assert ("1 and 2" if what == "odd" else "few samples") in str(caught.value)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("workers", [1, 2])
def test_warnings_reach_the_caller(workers):
    with pytest.warns(UserWarning, match="few samples"):
        simulate(CLIENTS, Failing(Model(PHI), local_epochs=1, what="warning"), workers=workers, **OPTIONS)


def long_run(folder, workers, told=None):
    """What comes out of twelve rounds with a checkpoint."""
    method = FedAvg(Model(PHI), local_epochs=2, batch_size=5)
    run = simulate(
        CLIENTS, method, **{**OPTIONS, "rounds": 12}, checkpoint=folder, workers=workers, on_round=told,
    )  # fmt: skip
    return run.final["accuracy"], {name: p.tolist() for name, p in run.server.items()}


RUN = """
import json, multiprocessing, os, sys
from test_pool import long_run

def told(row):
    children = [child.pid for child in multiprocessing.active_children()]
    print(json.dumps([row["round"], os.getpid(), children]), flush=True)

for folder in sys.argv[1:]:
    if os.fork():  # a copy that has computed nothing yet
        print(json.dumps(os.waitstatus_to_exitcode(os.wait()[1])), flush=True)
    else:
        long_run(folder, 3, told)
        break
"""


def alive(pid):
    """Whether a process is there and not only waits to be looked at."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids, seconds=30):
    """Whether processes end within so many seconds."""
    end = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(alive, pids))


def left_in_memory():
    return {path.name for path in Path("/dev/shm").iterdir()} if Path("/dev/shm").exists() else set()


@pytest.mark.nightly
@forks
def test_a_run_that_was_ended_leaves_nothing_and_goes_on_with_the_same_bits(tmp_path):
    """One program after the other, each a fork of a process that has what they import."""
    signals = {tmp_path / str(int(how)): how for how in (9, signal.SIGTERM, signal.SIGINT)}
    whole = long_run(tmp_path / "whole", 1)
    runs = script(RUN, *signals, stderr=subprocess.DEVNULL)
    for folder, how in signals.items():
        while isinstance(said := json.loads(runs.stdout.readline()), list):
            done, run, pids = said
            if done == 4:
                os.kill(run, how)
        assert said != 0, how
        assert done < 12
        assert len(pids) == 3
        assert gone(pids)
        assert {path.name for path in folder.iterdir()} <= {"state.safetensors"} | {
            path.name for path in folder.glob("*.tmp*")
        }
        rounds = []
        assert long_run(folder, 2, lambda row, rounds=rounds: rounds.append(row["round"])) == whole
        assert rounds[0] > 1, "it went on"
        assert not [name for name in left_in_memory() for pid in (*pids, run) if str(pid) in name]
    runs.communicate()


# --- messages -------------------------------------------------------------------------------------------------------


def test_tensors_come_out_with_their_strides_and_as_one_where_they_were_one():
    simulator = Simulator(CLIENTS, METHOD, device="cpu")
    wire = wire_of([simulator])
    base = torch.randn(6, 8, dtype=torch.float64)
    each = [base, base.T, base[1:, 2:5], base[0].expand(3, 8), base[2, 3], base[:0], base > 0, base.to(torch.bfloat16)]
    each += [torch.tensor(3), base[:, 1].float().requires_grad_()]
    found, same, run = wire.loads(wire.dumps((each, [base, base], simulator)))
    for a, b in zip(each, found, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        assert torch.equal(a, b)
        assert not a.numel() or a.data_ptr() % 64 == b.data_ptr() % 64
    assert same[0] is same[1] is found[0]
    assert run is simulator


def test_messages_grow_with_the_clients_and_hold_no_samples(monkeypatch):
    sent, dumps = [], parallel.Wire.dumps
    monkeypatch.setattr(parallel.Wire, "dumps", lambda self, message: (sent.append(dumps(self, message)), sent[-1])[1])
    widths = [3 + i % 17 for i in range(68)]
    y = np.arange(200) % 3
    clients = [
        Client(np.random.default_rng(i).normal(size=(200, w)), y, np.zeros((2, w)), y[:2], f"c{i}")
        for i, w in enumerate(widths)
    ]
    totals = []
    for n in (34, 68):
        sent.clear()
        method = FLIC(Model(PHI), local_epochs=1, batch_size=50, pretrain_epochs=1)
        simulate(Federation(clients[:n], 3), method, rounds=1, stack_size=8, workers=2, progress=False, device="cpu")
        totals.append(sum(map(len, sent)))
    assert totals[1] < 2.2 * totals[0]
    assert totals[1] < 4 * sum(200 * w * 4 for w in widths)
