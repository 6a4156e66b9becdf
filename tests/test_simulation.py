import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from small import assert_same_tensors, equal_histories, ragged

from hetfl_core import checkpoint, simulate
from hetfl_core.checkpoint import CheckpointError
from hetfl_core.federation import Client, Federation
from hetfl_core.methods import FLIC, FedAvg, HetFedRep, Local
from hetfl_core.networks import CNN, MLP, Model

SMALL = Model(MLP(hidden=(8,), out=6), alpha=5)
QUICK = FLIC(model=SMALL, local_epochs=1, batch_size=8, pretrain_epochs=1)


def run(fed=None, method=QUICK, **options):
    options = {"rounds": 4, "participation": 0.5, "device": "cpu", "progress": False} | options
    return simulate(fed if fed is not None else ragged(), method, **options)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"rounds": 0}, "rounds must be a whole number of at least 1, got 0"),
        ({"rounds": 2.5}, "rounds must be a whole number of at least 1, got 2.5"),
        ({"participation": 0.0}, r"participation must lie in \(0, 1\], got 0.0"),
        ({"participation": 1.1}, r"participation must lie in \(0, 1\], got 1.1"),
        ({"participation": 0.1}, r"participation=0.1 of 6 clients selects no client; it must be at least 0.1667"),
        ({"engine": "fast"}, r"engine must be one of \['loop', 'stacked'\], got 'fast'"),
        ({"evaluate_every": 0}, "evaluate_every must be at least 1"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"stack_size": 0}, "stack_size must be at least 1"),
    ],
)
def test_bad_arguments(bad, message):
    with pytest.raises(ValueError, match=message):
        run(**bad)


@pytest.mark.parametrize("bad", [{"local_epochs": 0}, {"batch_size": 0}, {"lambda1": -1.0}, {"anchor_variance": 0.0}])
def test_bad_settings_of_a_method(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        FLIC(**bad)


def test_a_federation_is_needed():
    with pytest.raises(TypeError, match="federation must be a Federation, got list"):
        simulate([], Local())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_no_gpu_is_said():
    with pytest.raises(ValueError, match="asks for CUDA, but PyTorch sees none"):
        run(device="cuda")


def test_feature_shapes_that_cannot_be_averaged_name_the_clients():
    with pytest.raises(
        ValueError, match=r"FedAvg averages 'phi.0.weight', .*\(\d, 64\) on 'client-0' but \(\d, 64\) on"
    ):
        run(method=FedAvg())


def test_inputs_that_no_cohort_can_take_name_the_client():
    fed = ragged(widths=(4, 4))
    wide = Client(torch.zeros(4, 1, 8, 6), [0, 1, 0, 1], torch.zeros(1, 1, 8, 6), [0], "oblong")
    small = Client(torch.zeros(4, 1, 8, 8), [0, 1, 0, 1], torch.zeros(1, 1, 8, 8), [0], "tiny")
    convolution = Local(model=Model(CNN()))
    with pytest.raises(
        ValueError, match=r"client 'oblong': Local's model cannot take inputs of shape \(1, 8, 6\): .*square"
    ):
        run(Federation([wide]), convolution, participation=1.0)
    with pytest.raises(ValueError, match=r"client 'tiny': .* images of side 8 are too small"):
        run(Federation([small]), convolution, participation=1.0)
    with pytest.raises(ValueError, match=r"client 'client-0': .* a CNN needs square images"):
        run(fed, convolution, participation=1.0)


def test_history_has_what_it_promises():
    result = run()
    history = result.history
    assert history["round"].tolist() == [0, 1, 2, 3, 4]
    assert {"ce", "w2", "anchor", "train_accuracy", "test_accuracy", "bytes_up", "bytes_down", "seconds"} <= set(
        history
    )
    assert history["test_accuracy"].between(0, 1).all()
    assert (history["seconds"] > 0).all()
    assert len(result.per_client) == 6
    assert result.final["accuracy"] == pytest.approx(result.per_client["accuracy"].mean())
    weights = result.per_client["n_test"]
    assert result.final["accuracy_weighted"] == pytest.approx(
        (result.per_client["accuracy"] * weights).sum() / weights.sum()
    )


def test_bytes_are_those_of_true_shapes():
    """α: (6·5 + 5), anchors: 5 classes × 6, float32; three participants a round; pre-training and the end: all six."""
    result = run(rounds=2)
    message = 4 * (6 * 5 + 5 + 5 * 6)
    assert result.history["bytes_up"].tolist() == [0, 3 * message, 3 * message]
    assert result.history["bytes_down"].tolist() == [6 * message, 3 * message, 3 * message]
    assert result.final["bytes_up"] == 6 * message
    assert result.final["bytes_down"] == 18 * message


def test_nothing_but_the_upload_leaves_a_client():
    """What the server holds after a round is a function of the uploads alone: φ and β never reach it."""
    result = run(method=HetFedRep(model=SMALL, local_epochs=1))
    assert set(result.server) == {"alpha.weight", "alpha.bias"}
    assert run(method=Local(model=SMALL, local_epochs=1)).server == {}


def test_clients_at_rest_are_not_touched():
    fed = ragged()
    result = simulate(
        fed, Local(model=SMALL, local_epochs=1), rounds=1, participation=0.2, progress=False, device="cpu"
    )
    from hetfl_core.simulation import Simulator, participants

    simulator = Simulator(fed, Local(model=SMALL, local_epochs=1), device="cpu")
    start = simulator.initial()
    chosen = participants([c.name for c in fed], 0.2, 0, 0)
    after, _ = simulator.round(start, chosen)
    for i in range(len(fed)):
        same = all(torch.equal(start.kept[i][n], after.kept[i][n]) for n in start.kept[i])
        assert same == (i not in chosen)
    assert result.settings["rounds"] == 1


def test_evaluate_every_leaves_gaps_but_not_at_the_ends():
    accuracy = run(evaluate_every=3).history["test_accuracy"]
    assert accuracy.isna().tolist() == [False, True, True, False, False]


def test_threads_are_put_back():
    seen = []
    before = torch.get_num_threads()
    run(rounds=1, threads=before + 1, on_round=lambda row: seen.append(torch.get_num_threads()))
    assert seen == [before + 1]
    assert torch.get_num_threads() == before


def test_embeddings_and_predictions_come_client_by_client():
    fed = ragged()
    result = run(fed)
    assert {n: z.shape for n, z in result.embed("train").items()} == {c.name: (c.n_train, 6) for c in fed}
    logits = result.predict("test")
    right = [(logits[c.name].argmax(1) == c.y_test.numpy()).mean() for c in fed]
    assert sum(right) / len(right) == pytest.approx(result.final["accuracy"])


def test_a_client_without_test_samples_is_left_out_of_the_mean():
    fed = ragged()
    clients = [*fed.clients, Client(fed[0].x_train, fed[0].y_train, fed[0].x_train[:0], fed[0].y_train[:0], "no-test")]
    result = run(Federation(clients, fed.n_classes))
    assert result.per_client["accuracy"].isna().sum() == 1
    assert result.final["accuracy"] == pytest.approx(result.per_client["accuracy"].mean())


# --- checkpoints ----------------------------------------------------------------------------------------------------

SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
from small import ragged
from test_simulation import QUICK
from hetfl_core import simulate
def slow(row):
    print(row["round"], flush=True)
    time.sleep(0.05)
options = dict(rounds=12, participation=0.5, device="cpu", progress=False, checkpoint={folder!r})
run = simulate(ragged(), QUICK, on_round=slow, **options)
"""


def test_a_killed_run_resumes_bit_for_bit(tmp_path):
    folder = tmp_path / "run"
    script = SCRIPT.format(tests=os.path.dirname(__file__), folder=str(folder))
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == 5:
            time.sleep(0.02)
            process.send_signal(signal.SIGKILL)
            break
    process.wait()
    process.stdout.close()
    rounds = []
    resumed = run(rounds=12, checkpoint=folder, on_round=lambda row: rounds.append(row["round"]))
    whole = run(rounds=12)
    assert rounds[0] in (6, 7), "it must go on from the last complete round"
    assert equal_histories(resumed.history, whole.history)
    assert_same_tensors(resumed.server, whole.server)
    for a, b in zip(resumed.kept, whole.kept, strict=True):
        assert_same_tensors(a, b)
    assert {k: v for k, v in resumed.final.items() if k != "seconds"} == {
        k: v for k, v in whole.final.items() if k != "seconds"
    }


def test_a_finished_run_goes_on_with_more_rounds(tmp_path):
    run(rounds=2, checkpoint=tmp_path)
    longer = run(rounds=4, checkpoint=tmp_path)
    assert equal_histories(longer.history, run(rounds=4).history)
    with pytest.raises(CheckpointError, match="holds 4 complete rounds, more than rounds=3"):
        run(rounds=3, checkpoint=tmp_path)


@pytest.mark.parametrize("change", [{"seed": 1}, {"participation": 1.0}, {"method": Local()}, {"fed": ragged(seed=1)}])
def test_a_checkpoint_of_another_setting_is_refused(tmp_path, change):
    run(rounds=1, checkpoint=tmp_path)
    before = (tmp_path / checkpoint.FILE).read_bytes()
    with pytest.raises(CheckpointError, match="belongs to a run with other settings or data"):
        run(rounds=1, checkpoint=tmp_path, **change)
    assert (tmp_path / checkpoint.FILE).read_bytes() == before


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"\xff" * 8 + b[8:]])
def test_a_damaged_checkpoint_is_refused(tmp_path, damage):
    run(rounds=1, checkpoint=tmp_path)
    file = tmp_path / checkpoint.FILE
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(CheckpointError, match=r"state.safetensors is damaged .* remove it to start the run anew"):
        run(rounds=1, checkpoint=tmp_path)


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    run(rounds=1, checkpoint=tmp_path)
    before = (tmp_path / checkpoint.FILE).read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device; what was there before is untouched"):
        run(rounds=2, checkpoint=tmp_path)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == [checkpoint.FILE]
    assert (tmp_path / checkpoint.FILE).read_bytes() == before
    assert equal_histories(run(rounds=2, checkpoint=tmp_path).history, run(rounds=2).history)


def test_a_really_full_disk(tmp_path):
    """/dev/full is a device on which every write fails as on a full disk."""
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full on this system")
    (tmp_path / "folder").symlink_to("/dev/full")
    with pytest.raises(CheckpointError, match="cannot write"):
        run(rounds=1, checkpoint=tmp_path / "folder")


def test_a_checkpoint_holds_no_pickle(tmp_path):
    run(rounds=1, checkpoint=tmp_path)
    content = (tmp_path / checkpoint.FILE).read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert header["__metadata__"]["done"] == "1"
    assert all(set(v) == {"dtype", "shape", "data_offsets"} for k, v in header.items() if k != "__metadata__")


def test_one_tensor_under_two_names_can_be_written(tmp_path):
    v = torch.rand(3)
    checkpoint.write(tmp_path, "mark", checkpoint.State(0, {"now": v, "before": v}, []))
    back = checkpoint.read(tmp_path, "mark")
    assert back is not None
    assert_same_tensors(back.server, {"now": v, "before": v})


def test_state_survives_the_round_trip(tmp_path):
    kept = [{"a": torch.rand(2), "b": torch.rand(3, 1)}, {"b": torch.rand(3, 1), "a": torch.rand(5)}, {}]
    state = checkpoint.State(3, {"v": torch.rand(2, 2)}, kept, [{"round": 0, "ce": None}])
    checkpoint.write(tmp_path, "mark", state)
    back = checkpoint.read(tmp_path, "mark")
    assert back is not None
    assert (back.done, back.rows) == (3, state.rows)
    assert_same_tensors(back.server, state.server)
    for a, b in zip(back.kept, kept, strict=True):
        assert list(a) == list(b)
        assert_same_tensors(a, b)
    assert checkpoint.read(tmp_path / "nothing", "mark") is None
