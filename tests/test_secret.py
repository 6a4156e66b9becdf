"""Noise that a server cannot take off: of a secret that stays with the client, and no second look at a round."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from small import assert_same_tensors, ragged
from test_deployment import SMALL, assert_same_run, deploy, grid_of, in_one_process

from hetfl_core import simulate
from hetfl_core.deployment import DeploymentError, serve, wire
from hetfl_core.deployment.secret import RELEASED, SECRET, Releases, secret_of
from hetfl_core.deployment.site import RunSettings, Site, SiteError, Task
from hetfl_core.engine.simulator import Simulator
from hetfl_core.methods import FLIC, FedAvg, Method
from hetfl_core.methods.privacy import Privacy
from hetfl_core.networks import MLP, Model
from hetfl_core.rng import SECRET_BYTES, SecretStream, digest, normal, secret_stream, stream

loopback = pytest.importorskip("loopback", reason="Flower is not installed")

NOISY = Privacy(0.02, 20.0)
BRIEF = {"weighting": "uniform", "local_epochs": 1, "pretrain_epochs": 1}
PRIVATE = FLIC(SMALL, privacy=NOISY, **BRIEF)
PLAIN = replace(PRIVATE, privacy=Privacy(0.02, 0.0))
FED = ragged(3)
CONFIG = {"classes": FED.n_classes, "clients": 3, "rounds": 2, "seed": 3, "dtype": "float64", "patience": 5.0}


def states(folder):
    return {i + 1: {"state": str(folder / "state")} for i in range(len(FED))}


def secrets_in(folder):
    return {client.name: (folder / "state" / client.name / SECRET).read_bytes() for client in FED}


def uploads(method, folder=None, config=None, spoil=lambda node, message: None):
    """What leaves each client in each round, the secrets in their folders; by client and round."""
    grid = grid_of(FED, {"FLIC": method}, {} if folder is None else states(folder))
    asked, sent = {}, {}

    def before(node, message):
        if "tasks" in message.metadata.message_type:
            spoil(node, message)
            asked[node] = wire.unpack_tasks(message.content)["FLIC"]

    def change(node, message):
        key = "FLIC/sent"
        if key in message.content and len(message.content[key]):
            task = asked[node]
            sent[FED[node - 1].name, task.round] = (wire.from_arrays(message.content[key]), task.received)
        return message

    grid.before, grid.change = before, change
    result = serve(grid, {**CONFIG, **(config or {})}, {"FLIC": method})
    return sent, result["FLIC"]


def flat(params, like):
    return torch.cat([(params[name] - like[name]).flatten() for name in params])


# --- the stream -----------------------------------------------------------------------------------------------------


def test_its_numbers_are_normal_and_go_on():
    rng = SecretStream(bytes(32))
    first, second = rng.normal((400, 50), torch.float64), rng.normal((20_000,), torch.float32)
    assert first.shape == (400, 50)
    assert second.dtype == torch.float32
    assert kstest(first.flatten().numpy(), "norm").pvalue > 0.01
    assert kstest(second.numpy(), "norm").pvalue > 0.01
    assert abs(np.corrcoef(first.flatten(), second)[0, 1]) < 0.03
    assert torch.equal(first, SecretStream(bytes(32)).normal((400, 50), torch.float64))
    assert rng.normal((0, 3), torch.float32).shape == (0, 3)


def test_all_of_the_secret_counts():
    """Of a seed PyTorch's generator on the CPU takes 32 bits: whoever tries them out has the noise."""
    seeds = [torch.Generator().manual_seed(5 + high) for high in (0, 7 << 32)]
    assert torch.equal(*(torch.randn(9, generator=rng) for rng in seeds))
    message = {"a": torch.zeros(3)}
    secrets = [bytes(32), b"\1" + bytes(31), bytes(31) + b"\1"]
    drawn = [secret_stream(s, 0, "a", 0, "protect", message).normal((9,), torch.float64) for s in secrets]
    assert len({tuple(numbers.tolist()) for numbers in drawn}) == 3


def test_unlike_messages_never_have_the_same_noise():
    secret, a = bytes(32), {"a": torch.zeros(3), "b": torch.ones(2)}
    others = [
        {"a": torch.zeros(3), "b": torch.tensor([1.0, 1.0 + 2**-23])},
        {"a": torch.zeros(3, dtype=torch.float64), "b": torch.ones(2)},
        {"a": torch.zeros(3, 1), "b": torch.ones(2)},
        {"c": torch.zeros(3), "b": torch.ones(2)},
    ]

    def numbers(*messages, seed=0, client="x", round=0):
        return tuple(secret_stream(secret, seed, client, round, "protect", *messages).normal((4,), torch.float64))

    assert numbers(a, a) == numbers(dict(reversed(a.items())), a), "whatever their order"
    found = {numbers(a, a), *(numbers(one, a) for one in others), *(numbers(a, one) for one in others)}
    assert len(found) == 9
    assert len({numbers(a), numbers(a, seed=1), numbers(a, client="y"), numbers(a, round=1)}) == 4
    assert digest({"a": torch.zeros(3)}) != digest({"a": torch.zeros(2)})


def test_noise_is_drawn_of_either_kind_of_stream():
    generator = stream(0, "x", 0, "protect")
    assert torch.equal(normal((5,), generator), torch.randn(5, generator=stream(0, "x", 0, "protect")))
    assert normal((2, 2), SecretStream(b"k"), torch.float64).dtype == torch.float64
    with pytest.raises(TypeError, match="source must be a Generator or SecretStream, got 3"):
        normal((2,), 3)
    with pytest.raises(ValueError, match="a secret of the client's own, but it has none: give it a folder"):
        normal((2,), secret_stream(b"", 0, "x", 0, "protect"))


# --- a simulation that is told them ---------------------------------------------------------------------------------


def test_a_simulation_without_secrets_has_the_noise_of_its_seed():
    run = in_one_process(FED, PRIVATE)
    assert_same_tensors(run.server, in_one_process(FED, PRIVATE, secrets={}).server)
    secrets = {client.name: bytes([i]) * 32 for i, client in enumerate(FED)}
    other = in_one_process(FED, PRIVATE, secrets=secrets)
    assert not torch.equal(run.server["anchor.mean"], other.server["anchor.mean"])
    assert_same_tensors(other.server, in_one_process(FED, PRIVATE, secrets=secrets, workers=2).server)
    assert_same_tensors(in_one_process(FED, PLAIN).server, in_one_process(FED, PLAIN, secrets=secrets).server)


def test_a_run_goes_on_with_the_same_secrets_only_and_keeps_none(tmp_path):
    secret = b"0123456789abcdef" * 2
    secrets = {FED[0].name: secret}
    whole = in_one_process(FED, PRIVATE, secrets=secrets)
    in_one_process(FED, PRIVATE, secrets=secrets, rounds=1, checkpoint=tmp_path)
    (state,) = tmp_path.rglob("state.safetensors")
    assert secret not in state.read_bytes()
    with pytest.raises(RuntimeError, match="secrets"):
        in_one_process(FED, PRIVATE, secrets={FED[0].name: bytes(32)}, checkpoint=tmp_path)
    assert_same_tensors(whole.server, in_one_process(FED, PRIVATE, secrets=secrets, checkpoint=tmp_path).server)


@pytest.mark.parametrize(
    ("secrets", "words"),
    [
        ({"nobody": bytes(32)}, "no client in secrets is called 'nobody'; there is client-0"),
        ({"client-0": bytes(16)}, r"secrets\['client-0'\] must be bytes, at least 32 of them; got others"),
        ({"client-0": "x" * 32}, "must be bytes"),
    ],
)
def test_secrets_that_are_none_are_refused_and_not_shown(secrets, words):
    with pytest.raises(ValueError, match=words) as caught:
        simulate(FED, PRIVATE, secrets=secrets)
    assert "xxxx" not in str(caught.value)
    with pytest.raises(TypeError, match="secrets must be a mapping"):
        Simulator(FED, PRIVATE, secrets=[bytes(32)])


# --- a deployment ---------------------------------------------------------------------------------------------------


def test_who_knows_seed_name_round_and_message_cannot_take_the_noise_off(tmp_path):
    noisy, _ = uploads(PRIVATE, tmp_path, {"rounds": 1})
    clipped, _ = uploads(PLAIN, tmp_path / "truth", {"rounds": 1})
    for (name, round), (sent, received) in noisy.items():
        rng = stream(CONFIG["seed"], name, round, "protect")
        noise = {n: torch.randn(p.shape, generator=rng, dtype=p.dtype) * NOISY.deviation for n, p in sent.items()}
        recovered = flat({n: sent[n] - noise[n] for n in sent}, received)
        truth = flat(*clipped[name, round])
        assert 0.1 * NOISY.clip < float(truth.norm()) <= NOISY.clip, "there is something to be found"
        assert float(recovered.norm()) > 100 * NOISY.clip
        assert abs(float(torch.cosine_similarity(recovered, truth, 0))) < 4 / len(truth) ** 0.5


def test_but_with_the_secret_it_is_what_one_process_computes(tmp_path):
    result = deploy(FED, {"FLIC": PRIVATE}, {"participation": 0.7}, states(tmp_path))["FLIC"]
    run = in_one_process(FED, PRIVATE, participation=0.7, secrets=secrets_in(tmp_path))
    assert_same_run(result, run)
    assert not torch.equal(run.server["anchor.mean"], in_one_process(FED, PRIVATE).server["anchor.mean"])


def test_what_is_sent_under_noise_must_still_have_its_shape(tmp_path, capsys):
    """The server makes up an upload of each client to know how one looks."""
    grid = grid_of(FED, {"FLIC": PRIVATE}, states(tmp_path))

    def change(node, message):
        if node == 2 and "FLIC/sent" in message.content and len(message.content["FLIC/sent"]):
            sent = wire.from_arrays(message.content["FLIC/sent"])
            message.content["FLIC/sent"] = wire.to_arrays({name: p[:1] for name, p in sent.items()})
        return message

    grid.change = change
    serve(grid, {**CONFIG, "rounds": 1}, {"FLIC": PRIVATE})
    said = capsys.readouterr().out
    assert "cannot be foreseen" not in said
    assert "the upload of client 'client-1' is refused" in said
    assert "must have shape" in said


def test_without_a_folder_for_its_secret_nothing_is_said_but_that(capsys):
    grid, said = grid_of(FED, {"FLIC": PRIVATE, "plain": PLAIN}), []
    grid.change = lambda node, message: said.append(wire.unpack_words(message.content)) or message
    with pytest.raises(DeploymentError, match=r"expected 3 clients, but after 0.1 s there are 0"):
        serve(grid, {**CONFIG, "patience": 0.1}, {"FLIC": PRIVATE, "plain": PLAIN})
    assert {tuple(words) for words in said} == {("error",)}
    assert "FLIC adds noise for privacy, whose secret must be kept: start the client with a folder" in str(said[0])

    # A server that asks without a greeting gets no upload either.
    site = Site(FED[0], PRIVATE, RunSettings(FED.n_classes, dtype=torch.float64), 3)
    begin = Simulator(FED, PRIVATE, device="cpu", dtype=torch.float64)
    received = begin.downloads(begin.initial())[0]
    _, memory = site.work(Task("start", 0, received, begin.server.common()), None)
    with pytest.raises(ValueError, match=r"client 'client-0': noise .* must be drawn with a secret"):
        site.work(Task("round", 0, received), memory)


def test_a_method_that_draws_by_itself_is_refused_at_the_site(tmp_path):
    """As PyTorch's generator is none that a server could not foretell."""

    @dataclass(frozen=True)
    class Own(FedAvg):
        def protect(self, upload, received, rng):
            return {name: p + torch.randn(p.shape, generator=rng).to(p) for name, p in upload.items()}

    @dataclass(frozen=True)
    class Right(FedAvg):
        def protect(self, upload, received, rng):
            return {name: p + normal(p.shape, rng, p.dtype) for name, p in upload.items()}

    fed = ragged(3, widths=(4, 4))
    own, right = (each(Model(MLP((5,), 4)), local_epochs=1) for each in (Own, Right))
    assert own.needs_secret
    assert right.needs_secret
    assert not FedAvg().needs_secret
    assert not PLAIN.needs_secret
    assert not FLIC().needs_secret
    in_one_process(fed, own)
    with pytest.raises(DeploymentError, match=r"no usable|nobody"):
        deploy(fed, {"own": own}, {}, states(tmp_path / "own"))
    result = deploy(fed, {"right": right}, {}, states(tmp_path))["right"]
    names = [client.name for client in fed]
    secrets = {name: (tmp_path / "state" / name / SECRET).read_bytes() for name in names}
    assert_same_run(result, in_one_process(fed, right, secrets=secrets))


# --- no second look -------------------------------------------------------------------------------------------------


def test_the_same_question_gets_the_same_bytes_and_another_is_refused(tmp_path, capsys):
    first, result = uploads(PRIVATE, tmp_path)
    again, repeated = uploads(PRIVATE, tmp_path)
    assert first.keys() == again.keys()
    assert len(first) == 6
    for key, (sent, _) in first.items():
        assert_same_tensors(sent, again[key][0])
    assert_same_tensors(result.server, repeated.server)
    capsys.readouterr()

    def turned(node, message):
        """A server that asks the first client in round 1 with anchors of its own making."""
        task = wire.unpack_tasks(message.content)["FLIC"]
        if node == 1 and (task.kind, task.round) == ("round", 1):
            key = "FLIC/received"
            message.content[key] = wire.to_arrays({n: p + 1 for n, p in task.received.items()})

    third, _ = uploads(PRIVATE, tmp_path, spoil=turned)
    name = FED[0].name
    assert (name, 1) not in third
    assert "has answered round 1 (round) already, with another message" in capsys.readouterr().out
    assert Releases(tmp_path / "state" / name / "FLIC").known().keys() == {"0/round", "1/round"}


def test_other_settings_of_the_same_run_get_no_second_look_either(tmp_path, capsys):
    """Also where the client's memory was removed, but not what it has sent."""
    uploads(PRIVATE, tmp_path, {"rounds": 1})
    for client in FED:
        (tmp_path / "state" / client.name / "FLIC" / "state.safetensors").unlink()
    with pytest.raises(DeploymentError, match=r"no usable|nobody"):
        uploads(replace(PRIVATE, lr=PRIVATE.lr * 2), tmp_path, {"rounds": 1})
    assert "has answered round 0 (round) already" in capsys.readouterr().out


def test_runs_of_another_name_have_noise_of_their_own(tmp_path):
    """Each message of them is a release of its own, and all stand in the client's folder."""
    methods = {"one": PRIVATE, "two": replace(PRIVATE, lr=PRIVATE.lr * 2)}
    results = deploy(FED, methods, {"rounds": 1}, states(tmp_path))
    assert not torch.equal(results["one"].server["anchor.mean"], results["two"].server["anchor.mean"])
    own = tmp_path / "state" / FED[0].name
    assert [len(Releases(own / run).known()) for run in methods] == [1, 1]


def test_a_client_that_was_killed_goes_on_with_its_secret(tmp_path):
    folder = {"folder": str(tmp_path / "server"), "rounds": 1}
    deploy(FED, {"FLIC": PRIVATE}, folder, states(tmp_path))
    result = deploy(FED, {"FLIC": PRIVATE}, {**folder, "rounds": 2}, states(tmp_path))["FLIC"]
    assert_same_run(result, in_one_process(FED, PRIVATE, secrets=secrets_in(tmp_path)))


def test_a_lost_folder_means_a_new_secret_and_that_is_said(tmp_path, caplog):
    first = secret_of(tmp_path / "berlin")
    assert "a new secret for the noise of this client. If there was one before" in caplog.text
    caplog.clear()
    assert secret_of(tmp_path / "berlin") == first
    assert not caplog.text
    assert len(first) == SECRET_BYTES
    (tmp_path / "berlin" / SECRET).unlink()
    assert secret_of(tmp_path / "berlin") != first
    assert [path.name for path in (tmp_path / "berlin").iterdir()] == [SECRET], "no draft is left"
    (tmp_path / "berlin" / SECRET).write_bytes(first[:31])
    with pytest.raises(SiteError, match=r"noise\.key must have 32 bytes, got 31: bring back the former file"):
        secret_of(tmp_path / "berlin")
    (tmp_path / RELEASED).write_text("{")
    with pytest.raises(SiteError, match="cannot be read, so that nobody knows what was sent before"):
        Releases(tmp_path).add(Task("round", 0, {}), {})


# --- who may read what is left --------------------------------------------------------------------------------------


def modes(folder):
    """Rights of all folders and files below one."""
    found = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in found}


def test_what_a_deployment_leaves_is_its_owners_alone(tmp_path):
    before = os.umask(0o022)
    try:
        methods: dict[str, Method] = {"FLIC": PRIVATE, "FedAvg": FedAvg(Model(MLP((5,), 4)), local_epochs=1)}
        fed = ragged(3, widths=(4, 4))
        (tmp_path / "state" / "client-0").mkdir(parents=True)  # as a former version made it
        for _ in range(2):
            deploy(fed, methods, {"folder": str(tmp_path / "out" / "results")}, states(tmp_path))
        assert os.umask(0o022) == 0o022, "the process itself goes on as before"
    finally:
        os.umask(before)
    own = {f"{place}/{name}": mode for place in ("state", "out") for name, mode in modes(tmp_path / place).items()}
    del own["state/."]  # was there before, and is its owner's to open or close
    assert len([name for name in own if name.endswith("model.safetensors")]) == 6
    assert {name: oct(mode) for name, mode in own.items() if mode & 0o077} == {}


def test_a_second_run_stays_out_of_a_folder_in_which_one_is_at_work(tmp_path):
    folder = {"folder": str(tmp_path / "out"), "rounds": 1}
    grid, refused = grid_of(FED, {"FLIC": PLAIN}), []

    def before(node, message):
        if not refused:
            with pytest.raises(
                DeploymentError, match=r"a run is at work in .*out already: wait for its end or stop it"
            ):
                deploy(FED, {"FLIC": PLAIN}, folder)
            refused.append(node)

    grid.before = before
    serve(grid, {**CONFIG, **folder}, {"FLIC": PLAIN})
    assert refused
    deploy(FED, {"FLIC": PLAIN}, folder)
