"""Ready for a GPU: nothing within a stage waits for the device or is copied to it; what has CUDA says the same."""

import pytest
import torch
from small import largest_difference, ragged
from test_training import VARIANTS, federation_for
from torch.utils._python_dispatch import TorchDispatchMode

from hetfl_core import simulate
from hetfl_core.engine import steps
from hetfl_core.engine.training import StackedStage
from hetfl_core.methods import Local, anchor_terms
from hetfl_core.networks import CNN, Model

aten = torch.ops.aten
WAITS = {
    aten._local_scalar_dense: "a number is read (.item(), float(), bool())",
    aten.nonzero: "rows are chosen by a mask",
    aten.masked_select: "rows are chosen by a mask",
    aten._unique2: "unique() has as many rows as it finds",
    aten.unique_consecutive: "unique_consecutive() has as many rows as it finds",
    aten.lift_fresh: "a tensor is made from numbers of Python",
    aten.equal: "two tensors are compared on the host",
}
"""Operations for which the host has to wait for a GPU, or that copy to it."""

INDEXED = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}


class NoWaiting(TorchDispatchMode):
    """Counts operations, and what of them would keep a GPU waiting."""

    def __init__(self):
        super().__init__()
        self.operations, self.waits = 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations += 1
        if func.overloadpacket in INDEXED and any(
            i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        ):
            self.waits.append(WAITS[aten.masked_select])
        if func.overloadpacket in WAITS:
            self.waits.append(WAITS[func.overloadpacket])
        return func(*args, **(kwargs or {}))


def watch(monkeypatch):
    """Watch the live steps of every stage, on the code path that a GPU takes."""
    monkeypatch.setattr(anchor_terms, "BLOCK_ROWS", 10**9)
    monkeypatch.setattr(steps, "OFTEN", 10**9)
    watching, step = NoWaiting(), StackedStage.step

    def watched(self, *arguments):
        with watching:
            return step(self, *arguments)

    monkeypatch.setattr(StackedStage, "step", watched)
    return watching


@pytest.mark.parametrize("name", VARIANTS)
def test_no_step_waits_for_the_device(name, monkeypatch):
    watching, method = watch(monkeypatch), VARIANTS[name]
    fed = federation_for(method)
    simulate(fed, method, rounds=1, participation=0.5, engine="stacked", device="cpu", progress=False)
    assert watching.operations > 100
    assert watching.waits == []


def test_convolutions_do_not_wait_either(monkeypatch):
    watching = watch(monkeypatch)
    fed = ragged(n_clients=2, images=True)
    method = Local(Model(CNN(out=6, channels=(3, 4), dropout=0.5)), local_epochs=1)
    simulate(fed, method, rounds=1, engine="stacked", device="cpu", progress=False)
    assert watching.operations > 100
    assert watching.waits == []


def test_the_watch_notices_what_waits():
    with NoWaiting() as watching:
        x = torch.ones(3)
        float(x.sum())
        x[x > 0]
        torch.tensor([1.0])
    assert len(watching.waits) == 3


def test_losses_are_read_once_a_stage(monkeypatch):
    """After the steps, all loss terms of all clients come to the host together."""
    read, means = [], StackedStage.means

    def watched(self, *arguments):
        with NoWaiting() as watching:
            result = means(self, *arguments)
        read.append(len([w for w in watching.waits if "read" in w]))
        return result

    monkeypatch.setattr(StackedStage, "means", watched)
    monkeypatch.setattr(anchor_terms, "BLOCK_ROWS", 10**9)
    monkeypatch.setattr(steps, "OFTEN", 10**9)
    simulate(ragged(), VARIANTS["FLIC-HL"], rounds=1, engine="stacked", device="cpu", progress=False)
    assert read
    assert max(read) == 0, "a tensor's tolist() is one copy; float() of each number would be one each"


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["FLIC-HL", "FedHeNN", "FLIC published", "FedCR", "Fed-CMA", "FedGen", "pFedHN"])
def test_a_gpu_computes_what_a_cpu_does(name):
    method, options = VARIANTS[name], {"rounds": 2, "participation": 0.5, "progress": False, "dtype": torch.float64}
    fed = federation_for(method)
    a, b = (simulate(fed, method, device=device, engine="stacked", **options) for device in ("cpu", "cuda"))
    b.server = {key: p.cpu() for key, p in b.server.items()}
    b.client_states = [{key: p.cpu() for key, p in kept.items()} for kept in b.client_states]
    assert largest_difference(a, b) < 1e-7


@pytest.mark.cuda
def test_a_gpu_waits_for_nothing_within_a_step(monkeypatch):
    """As CUDA itself sees it: synchronisations are errors."""
    step = StackedStage.step

    def watched(self, *arguments):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return step(self, *arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    simulate(ragged(), VARIANTS["FLIC-HL"], rounds=1, device="cuda", progress=False)  # libraries load
    monkeypatch.setattr(StackedStage, "step", watched)
    monkeypatch.setattr(steps, "OFTEN", 10**9)  # to compare a record with a live step is to wait
    simulate(ragged(), VARIANTS["FLIC-HL"], rounds=1, device="cuda", progress=False)
