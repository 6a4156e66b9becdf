"""Steps that are played back from a record are those that would be computed; optimizers are PyTorch's."""

import subprocess
import sys
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from typing import NamedTuple, get_args

import pytest
import torch
from small import equal_histories, largest_difference, ragged
from tensors import normal

from hetfl_core import simulate, tape
from hetfl_core.engine import steps
from hetfl_core.engine.steps import OFTEN, Program, Records, Step, meaning
from hetfl_core.methods import FLIC, FedAvg, FedCMA, FedCR, FedPAC, Loss, Stage
from hetfl_core.methods.base import WITH_MOMENTUM, Optimizer
from hetfl_core.methods.descent import UPDATES, Descent, filled
from hetfl_core.networks import MLP, Model
from hetfl_core.tape import Tape, Unrecordable, whole

MODEL = Model(MLP(hidden=(7,), out=6))
EQUAL = ragged(widths=(5, 5), sizes=(16, 40))
THERE = torch.ones(3, dtype=torch.float64)
SHORT = {"local_epochs": 4, "batch_size": 4}


def script(function, *inputs):
    """A record of a function, as `Program` makes it."""
    with Tape() as tape:
        outputs = function(*inputs)
    return tape.script(inputs, outputs)


# --- optimizers -------------------------------------------------------------------------------------------------------

CLASSES = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}


def test_the_optimizers_that_a_stage_may_name_are_those_there_are():
    assert set(get_args(Optimizer)) == set(UPDATES) == set(CLASSES)


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize(("name", "momentum"), [*((n, 0.0) for n in CLASSES), *((n, 0.9) for n in WITH_MOMENTUM)])
def test_optimizers_are_those_of_torch_to_the_bit(name, momentum, stacked):
    """Whatever the memory layout of parameters and gradients, and with weight decay by part."""
    stage = Stage(("a", "b"), epochs=1, optimizer=name, lr=0.1, momentum=momentum, weight_decay={"b": 0.1})
    ours = {"a.w": normal(3, 4, 5, seed=1).mT.float(), "a.b": normal(3, 4, seed=2).float(), "b": normal(3, 2).float()}
    theirs = {key: p.clone().requires_grad_() for key, p in ours.items()}
    groups = [{"params": [p for key, p in theirs.items() if key[0] == k], "weight_decay": w} for k, w in ("a0", "b1")]
    groups = [{**group, "weight_decay": 0.1 * int(group["weight_decay"])} for group in groups]
    options = {"lr": 0.1} | ({"momentum": momentum} if momentum else {})
    options |= {"fused": stacked} if name != "rmsprop" else {}
    optimizer, descent = CLASSES[name](groups, **options), Descent(stage, ours, stacked)
    for step in range(4):
        grads = [
            normal(*p.mT.shape, seed=step).float().mT if p.dim() > 2 else normal(*p.shape).float()
            for p in ours.values()
        ]
        for p, g in zip(theirs.values(), grads, strict=True):
            p.grad = torch.empty_like(p).copy_(g)
        optimizer.step()
        descent.step(filled(ours, grads))
    for key, p in ours.items():
        torch.testing.assert_close(p, theirs[key].detach(), rtol=0, atol=0)


def test_momentum_does_not_move_clients_that_are_done():
    stage = Stage(("a",), epochs=1, optimizer="sgd", lr=0.1, momentum=0.9)
    params = {"a": torch.zeros(3, 2, dtype=torch.float32)}
    descent = Descent(stage, params, stacked=True)
    descent.step([torch.ones(3, 2, dtype=torch.float32)])
    assert descent.narrow(1)["a"].shape == (1, 2)
    descent.step([torch.ones(1, 2, dtype=torch.float32)])
    torch.testing.assert_close(params["a"][:, 0], torch.tensor([-0.29, -0.1, -0.1]))


# --- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        FedAvg(MODEL, optimizer="sgd", momentum=0.9, **SHORT),
        FedAvg(MODEL, clip=0.1, weight_decay=0.1, **SHORT),
        FedPAC(MODEL, **SHORT),
        FedCR(replace(MODEL, gaussian=6), samples=3, **SHORT),
        FedCMA(MODEL, **SHORT),
        FLIC(MODEL, pretrain_epochs=4, pretrain_batch=4, **SHORT),
        replace(FLIC.published(), model=MODEL, pretrain_epochs=4, pretrain_batch=4, finetune_epochs=4, **SHORT),
    ],
    ids=["momentum", "clip", "FedPAC", "FedCR", "FedCMA", "FLIC", "FLIC published"],
)
def test_bits_do_not_depend_on_when_steps_are_recorded(method, monkeypatch):
    """Never, once a step has come some times, or as early as can be."""
    runs, replayed = [], []
    script = Tape.script

    def counted(self, *arguments):
        play = script(self, *arguments)
        return lambda *inputs: (replayed.append(1), play(*inputs))[1]

    monkeypatch.setattr(Tape, "script", counted)
    for often in (10**9, 5, 0):
        monkeypatch.setattr(steps, "OFTEN", often)
        runs.append(simulate(EQUAL, method, rounds=2, engine="stacked", device="cpu", progress=False))
        assert (len(replayed) > 0) == (often < 10**9)
        replayed.clear()
    for run in runs[1:]:
        assert largest_difference(runs[0], run) == 0
        assert equal_histories(runs[0].history, run.history)


def test_a_record_repeats_whatever_was_done():
    """Views, writing in place, several results, what was there before, and results that nobody takes."""
    there = normal(4)

    def function(x, y):
        z = x.detach().view(2, 2) * 1.0
        z[0].mul_(y.view(2, 2)[1])
        values, _ = z.sort(dim=1)
        x.exp()
        return [torch.cat([z.flatten(), there]), values, x.view(4), torch.where(x > 0, x, 0.0)]

    play = script(function, normal(4, seed=1), normal(4, seed=2))
    inputs = normal(4, seed=3), normal(4, seed=4)
    for a, b in zip(play(*inputs), function(*inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: [x * float(x[0])],
        lambda x: [x if x[0] > 0 else -x],
        lambda x: [x[x > 0]],
        lambda x: [x.unique()],
        lambda x: [x + torch.rand(3, dtype=x.dtype)],
        lambda x: [whole(lambda t: t)(x)],
        lambda x: [x.view(3).add_(1.0)],
        lambda x: [THERE[1:].mul_(x[1:])],
    ],
    ids=["a number", "a branch", "a mask", "unique", "a draw", "nothing new", "into an input", "into a constant"],
)
def test_what_depends_on_values_is_not_recorded(function):
    with pytest.raises(Unrecordable, match="cannot be recorded"):
        script(function, normal(3))


def test_what_depends_on_values_can_be_recorded_as_a_whole():
    flipped = whole(lambda x: x.clone() if float(x[0]) > 0 else -x)
    play = script(lambda x: [flipped(x) * 2], torch.ones(2, dtype=torch.float32))
    torch.testing.assert_close(play(torch.tensor([-1.0, 3.0]))[0], torch.tensor([2.0, -6.0]))
    torch.testing.assert_close(play(torch.tensor([1.0, 3.0]))[0], torch.tensor([2.0, 6.0]))


def by_one(x):
    """As the transformed gradient of a linear layer multiplies."""
    return torch.ops.aten.mul.Scalar(x, 1)


def test_a_record_leaves_out_what_changes_nothing_and_keeps_what_is_always_the_same():
    def function(x):
        always = torch.ones_like(x.sum()).expand(3)  # by the shape alone
        zero = torch.ops.aten.scalar_tensor(0.0, dtype=x.dtype)
        return [by_one(x).pow(1) + always, by_one(by_one(x).view(1, 3)).pow(1.0).exp() + zero.expand(3).exp()]

    play, x = script(function, normal(3)), normal(3, seed=1)
    with Tape() as seen:
        found = play(x)
    assert [str(func) for func, *_ in seen.operations] == [
        *("aten.add.Tensor", "aten.view.default", "aten.exp.default", "aten.add.Tensor")
    ]
    for a, b in zip(found, function(x), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_what_a_record_gives_is_new_each_time_and_each_its_own():
    """Also where it left something out: who writes into one output changes neither another, an input, nor the next."""

    def function(x):
        total, written = x.sum(0), by_one(x.exp())
        written.add_(1.0)
        zeros = torch.zeros_like(x)
        return [by_one(x), by_one(total), by_one(total.view(1, 3)), total, x.exp(), written, zeros, by_one(zeros)]

    play, x = script(function, normal(2, 3)), normal(2, 3, seed=1)
    for _ in range(2):
        found = play(x)
        for a, b in zip(found, function(normal(2, 3, seed=1)), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
        for i, t in enumerate(found):
            t.fill_(i)
        assert [float(t.mean()) for t in found] == list(range(len(found)))
        torch.testing.assert_close(x, normal(2, 3, seed=1), rtol=0, atol=0)


def test_what_is_large_is_not_kept(monkeypatch):
    monkeypatch.setattr(tape, "SMALL", 2)
    x = normal(3)
    play = script(lambda x: [x + torch.ones_like(x)], x)
    with Tape() as seen:
        play(x)
    assert [str(func) for func, *_ in seen.operations] == ["aten.ones_like.default", "aten.add.Tensor"]


GROUPS = (("w",), (), ("a", "b"), ())


def a_step(loss):
    return Step(loss, None, {}, (("w",), (), (), ()), None)


def inputs(k, seed=0):
    x, y = normal(k, 4, 3, seed=seed), torch.zeros(k, 4, dtype=torch.int64)
    return [normal(k, 3, seed=seed + 1), x, y, torch.ones(k, 4, dtype=torch.float64)]


def squares(params, received, batch, noise):
    return Loss((batch.x @ params["w"]).square().mean())


def taken(program, inputs):
    """A step as a stage takes it, but that no record is compared again."""
    if program.record is not None:
        return program.record(*inputs)
    values = program.step(*inputs)
    program.learn(inputs, values)
    return values


def test_a_step_is_recorded_once_it_has_come_often():
    calls, program = [], Program(a_step(lambda *a: (calls.append(1), squares(*a))[1]))
    for number in range(OFTEN + 20):
        (gradient,) = taken(program, inputs(2, seed=number))
        w, x, *_ = inputs(2, seed=number)
        expected = 2 * (x.mT @ (x @ w.unsqueeze(-1))).squeeze(-1) / 4
        torch.testing.assert_close(gradient, expected)
    assert len(calls) == OFTEN + steps.TRIALS + 1, "live steps until it is believed, and the one that is recorded"


def test_inputs_that_are_one_tensor_at_first_may_be_two_later():
    step = Step(lambda p, r, b, n: Loss(p["w"] @ (2 * r["a"] + 3 * r["b"])), None, {"a": None, "b": None}, GROUPS, None)
    program, x = Program(step), inputs(1)
    one, two = normal(3, seed=8), normal(3, seed=9)
    for _ in range(OFTEN + 5):
        taken(program, [x[0], one, one, *x[1:]])
    torch.testing.assert_close(taken(program, [x[0], one, two, *x[1:]])[0][0], 2 * one + 3 * two)
    assert program.agreed == steps.TRIALS


def test_a_loss_that_changes_from_step_to_step_is_never_played_back():
    """Such as one that counts its calls: a record would repeat the number of the step at which it was made."""
    numbers = count(1)
    program = Program(a_step(lambda p, *rest: Loss(next(numbers) * squares(p, *rest).total)))
    found = [taken(program, inputs(2))[0] for _ in range(OFTEN + 20)]
    assert program.step.unrecordable
    again = [a for a, b in pairwise(found) if torch.equal(a, b)]
    assert again == []


@dataclass(frozen=True)
class Halving(FedAvg):
    """What a user may write: the server sends a rate, halved each round, and the loss reads it past PyTorch."""

    def init_server(self, specs, rng):
        return {**super().init_server(specs, rng), "rate": torch.ones(1, dtype=torch.float32)}

    def aggregate(self, server, *rest):
        return {**super().aggregate(server, *rest), "rate": server["rate"] / 2}

    def loss(self, params, received, batch, noise):
        found = super().loss(params, received, batch, noise)
        return found._replace(total=found.total * received["rate"].tolist()[0])


class Holder:
    value = 1.0


@dataclass(frozen=True)
class Stateful(FedAvg):
    """A setting that is an object, of which something changes from round to round."""

    holder: Holder = field(default_factory=Holder)

    def stages(self, round, role):
        self.holder.value = 1.0 / (1 + round)
        return super().stages(round, role)

    def loss(self, params, received, batch, noise):
        found = super().loss(params, received, batch, noise)
        return found._replace(total=found.total * self.holder.value)


@pytest.mark.parametrize("kind", [Halving, Stateful])
def test_what_changes_from_round_to_round_unseen_is_noticed(kind, monkeypatch):
    runs = []
    for often in (10**9, 0):
        monkeypatch.setattr(steps, "OFTEN", often)
        method = kind(MODEL, **SHORT)
        runs.append(simulate(EQUAL, method, rounds=4, engine="stacked", device="cpu", progress=False))
    assert largest_difference(*runs) == 0


def test_gradients_that_are_one_tensor_are_clipped_once():
    """PyTorch gives one gradient for both terms of a sum."""

    a, b = torch.zeros(2, 3, dtype=torch.float32), torch.zeros(2, 3, dtype=torch.float32)
    leaves = [a.clone().requires_grad_(), b.clone().requires_grad_()]
    grads = torch.autograd.grad(((leaves[0] + leaves[1]) * 100).sum(), leaves)
    stage = Stage(("a", "b"), epochs=1, optimizer="sgd", lr=1.0, clip=1.0)
    params = {"a": a, "b": b}
    Descent(stage, params, stacked=True).step(filled(params, grads))
    norms = (a.square().sum(1) + b.square().sum(1)).sqrt()
    torch.testing.assert_close(norms, torch.ones(2, dtype=torch.float32))


def test_settings_mean_what_they_are():
    class L1(NamedTuple):
        weight: float

    class L2(NamedTuple):
        weight: float

    @dataclass(frozen=True, slots=True)
    class Slotted:
        weight: float

    def closure(value):
        return lambda *arguments: value

    assert meaning(closure(L1(0.5))) == meaning(closure(L1(0.5))) != meaning(closure(L2(0.5)))
    assert meaning(closure(Slotted(1.0))) == meaning(closure(Slotted(1.0))) != meaning(closure(Slotted(2.0)))

    def later():
        return unset

    meaning(later)
    unset = 1
    assert later() == unset


def test_layouts_in_memory_are_told_apart():
    records = Records()
    step = records.step(Step(squares, None, {}, (("w",), (), (), ()), None))
    one = inputs(2)
    other = [one[0], one[1].mT.contiguous().mT, *one[2:]]
    assert records.program(step, one) is not records.program(step, other)


def test_rounds_share_records(monkeypatch):
    """Once a record is believed it is played back, in later rounds, too."""
    calls = []
    monkeypatch.setattr(steps, "OFTEN", 0)
    plain = Step.__call__
    monkeypatch.setattr(Step, "__call__", lambda self, *some: (calls.append(1), plain(self, *some))[1])
    method = FedAvg(MODEL, local_epochs=12, batch_size=4)
    simulate(EQUAL, method, rounds=2, stack_size=2, workers=1, device="cpu", progress=False)
    assert len(calls) < 200, "of some 1 800 steps"


def test_what_cannot_be_recorded_goes_on_live():
    program = Program(a_step(lambda p, r, b, n: Loss(p["w"].sum() * torch.ones(2, dtype=torch.float64).sum().item())))
    for _ in range(OFTEN + 5):
        torch.testing.assert_close(taken(program, inputs(2))[0], torch.full((2, 3), 2.0, dtype=torch.float64))
    assert program.step.unrecordable


def test_records_are_found_again_and_not_too_many_are_kept(monkeypatch):
    monkeypatch.setattr(steps, "MOST_RECORDS", 3)
    records, names = Records(), (("w",), (), (), ())
    step = records.step(Step(squares, None, {}, names, None))
    assert records.step(Step(squares, None, {}, names, None)) is step
    programs = [records.program(step, inputs(k)) for k in (1, 2, 3, 4)]
    assert records.program(step, inputs(4)) is programs[3]
    assert records.program(step, inputs(2)) is programs[1]
    assert records.program(step, inputs(1)) is not programs[0], "the one that was not used for longest"


def test_hooks_mean_the_same_where_they_compute_the_same():
    @dataclass(frozen=True)
    class Mine(FedAvg):
        factor: float = 1.0

        def loss(self, *arguments):
            return super().loss(*arguments)

    def closure(value):
        return lambda *arguments: value

    one, same, other = Mine(MODEL), Mine(MODEL), Mine(MODEL, factor=2.0)
    assert meaning(one.loss) == meaning(same.loss) == meaning(replace(one, model=MODEL).loss)
    assert meaning(one.loss) != meaning(other.loss)
    assert meaning(one.loss) != meaning(FedAvg(MODEL).loss)
    object.__setattr__(same, "extra", 3)  # what is no field may count as well
    assert meaning(one.loss) != meaning(same.loss)
    assert meaning(closure(1)) == meaning(closure(1)) != meaning(closure(2))
    assert meaning(closure(1)) != meaning(closure(1.0)) != meaning(closure(True))
    tensor = torch.ones(2, dtype=torch.float32)
    assert meaning(closure(tensor)) == meaning(closure(tensor)) != meaning(closure(tensor.clone()))


@pytest.mark.nightly
def test_training_loads_neither_the_compiler_of_torch_nor_sympy():
    """Each takes longer to load than PyTorch itself. Some servers train, too."""
    code = (
        "import sys, numpy as np\n"
        "from hetfl_core import Federation, simulate\n"
        "from hetfl_core.methods import Local, PFedHN\n"
        "x = np.random.default_rng(0).normal(size=(40, 3))\n"
        "fed = Federation.from_arrays({'a': (x, x[:, 0] > 0), 'b': (x, x[:, 1] > 0)}, test_size=0.5)\n"
        "for engine in ('stacked', 'loop'):\n"
        "    for method in (Local, PFedHN):\n"
        "        method = method(local_epochs=20 if method is Local else 1, batch_size=5)\n"
        "        simulate(fed, method, rounds=1, engine=engine, progress=False)\n"
        "print([name for name in ('torch._dynamo', 'sympy') if name in sys.modules])\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
