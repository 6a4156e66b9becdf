import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from small import largest_difference, ragged
from torch import nn

from hetfl_core import Client, load_trained, simulate
from hetfl_core.federation import Federation, Spec
from hetfl_core.methods import FLIC, FedAvg, Local
from hetfl_core.networks import CNN, MLP, Augmented, Draw, LeNet, Linear, Model, Network, PerClient, linear_init
from hetfl_core.rng import stream


def rng():
    return stream(0, "anna", 0, "test")


def spec(shape=(5,)):
    return Spec("anna", shape, 10, 4, (5, 5, 0, 0), 1)


def test_mlp_is_what_torch_layers_compute():
    net = MLP(hidden=(7, 6), out=3)
    params = net.init((5,), rng())
    x = torch.randn(4, 5)
    z = x
    for i in range(3):
        z = F.linear(z, params[f"phi.{i}.weight"].T, params[f"phi.{i}.bias"])
        z = F.relu(z) if i < 2 else z
    torch.testing.assert_close(net(params, x), z)


@pytest.mark.parametrize(("last", "expected"), [("relu", F.relu), ("tanh", torch.tanh), (None, lambda z: z)])
def test_an_activation_may_follow_the_latent_layer(last, expected):
    linear, net = MLP(hidden=(7,), out=3), MLP(hidden=(7,), out=3, last=last)
    params = net.init((5,), rng())
    x = torch.randn(40, 5, generator=rng())
    z = linear(params, x)
    assert (z < 0).any()
    assert torch.equal(net(params, x), expected(z))


@pytest.mark.parametrize(("shape", "flat"), [((1, 28, 28), 12 * 4 * 4), ((3, 32, 32), 12 * 5 * 5)])
def test_lenet_is_what_torch_layers_compute(shape, flat):
    """Convolution, activation, pooling, as the papers have it: to rounding, whichever of the last two comes first."""
    net = LeNet(channels=(4, 12), hidden=(30, 20), out=9, activation="leaky_relu")
    params = net.init(shape, rng())
    assert params["phi.2.weight"].shape == (flat, 30)
    x = z = torch.randn(3, *shape, generator=rng())
    for i, (c, out) in enumerate([(shape[0], 4), (4, 12)]):
        kernels = params[f"phi.{i}.weight"].T.reshape(out, c, 5, 5)
        z = F.max_pool2d(F.leaky_relu(F.conv2d(z, kernels, params[f"phi.{i}.bias"])), 2)
    z = z.flatten(1)
    for i in (2, 3, 4):
        z = F.leaky_relu(F.linear(z, params[f"phi.{i}.weight"].T, params[f"phi.{i}.bias"]))
    assert z.shape == (3, 9)
    torch.testing.assert_close(net(params, x), z, rtol=1e-4, atol=1e-6)


def test_lenet_has_the_parameters_of_fedcrs_table_5():
    """Two convolutions 5×5×64 of colour images, 1 600 × 1024 and 1024 × 1024: counted from the table."""
    params = LeNet(channels=(64, 64), hidden=(1024,), out=1024).init((3, 32, 32), rng())
    expected = (75 + 1) * 64 + (1600 + 1) * 64 + (1600 + 1) * 1024 + (1024 + 1) * 1024
    assert sum(p.numel() for p in params.values()) == expected
    assert isinstance(LeNet(), Network)


def test_lenet_is_lenet_5_unless_told():
    """LeCun et al. 1998: 32 × 32 pixels, 6 and 16 maps, 120 and 84 units."""
    shapes = [tuple(p.shape) for name, p in LeNet().init((1, 32, 32), rng()).items() if "weight" in name]
    assert shapes == [(25, 6), (150, 16), (400, 120), (120, 84)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LeNet().init((1, 28, 16), rng()), r"a LeNet needs square images .* got \(1, 28, 16\)"),
        (lambda: LeNet().init((28, 28), rng()), r"got \(28, 28\); grey images need an axis .* x\[:, None\]"),
        (lambda: CNN().init((16, 16), rng()), r"got \(16, 16\); grey images need an axis .* x\[:, None\]"),
        (lambda: LeNet().init((5,), rng()), r"a LeNet needs square images .* got \(5,\)"),
        (lambda: LeNet().init((1, 15, 15), rng()), "side 15 are too small for 2 5×5 convolutions with pooling"),
        (lambda: LeNet(channels=()), r"channels must be one or more, got \(\)"),
        (lambda: LeNet(hidden=(0,)), "hidden must be at least 1, got 0"),
        (lambda: LeNet(kernel=0), "kernel must be at least 1, got 0"),
        (lambda: LeNet(channels=(3, 0)), "channels must be at least 1, got 0"),
        (lambda: LeNet(out=0), "out must be at least 1, got 0"),
        (lambda: MLP(last="softmax"), "last must be one of .* or None, got 'softmax'"),
        (lambda: Model(gaussian=0), "gaussian must be at least 1, got 0"),
        (lambda: FLIC(model=Model(gaussian=3)), "FLIC.* aligns .* model must have no Gaussian layer, got 3"),
    ],
)
def test_what_a_layer_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_smallest_image_of_a_lenet():
    assert LeNet().side((1, 16, 16)) == 1


@pytest.mark.parametrize("fill", [(0.0,), (-1.0, 2.0)])
@pytest.mark.parametrize(("padding", "mirrored"), [(2, True), (3, False), (0, True)])
def test_images_are_cropped_and_mirrored_one_by_one(padding, mirrored, fill):
    """Against a loop over images that frames, cuts and mirrors each with plain slices."""
    net = Augmented(LeNet(channels=(2,), hidden=(), out=3, kernel=3), padding, mirrored, fill)
    x, drawn = torch.randn(40, 2, 6, 6, generator=rng()), torch.rand(40, 3, generator=rng())
    got = net.augmented(x, drawn)
    frame = torch.tensor(fill).reshape(-1, 1, 1).expand(2, 1, 1)
    for image, numbers, found in zip(x, drawn, got, strict=True):
        whole = frame.expand(2, 6 + 2 * padding, 6 + 2 * padding).clone()
        whole[:, padding : padding + 6, padding : padding + 6] = image
        top, left = (int(float(u) * (2 * padding + 1)) for u in numbers[:2])
        expected = whole[:, top : top + 6, left : left + 6]
        expected = expected.flip(2) if mirrored and numbers[2] >= 0.5 else expected
        torch.testing.assert_close(found, expected)
    edge = net.augmented(x[:1], torch.tensor([[1 - 1e-7, 0.0, 0.0]]))
    assert edge.shape == (1, 2, 6, 6), "the last window, not one beyond it"


def test_augmentation_is_for_training_alone_and_the_same_in_both_engines():
    net = Augmented(LeNet(channels=(2,), hidden=(), out=3, kernel=3), 1)
    assert isinstance(net, Network)
    assert net.out == 3
    fed = ragged(images=True, sizes=(6, 9))
    fed = Federation([c for c in fed if c.x_train.shape[-1] == 16], fed.n_classes)
    method = Local(Model(net), local_epochs=1, batch_size=4)
    options = {"rounds": 2, "participation": 1.0, "dtype": torch.float64, "device": "cpu", "progress": False}
    stacked, loop = (simulate(fed, method, engine=engine, **options) for engine in ("stacked", "loop"))
    assert largest_difference(stacked, loop) < 1e-9
    plain = simulate(fed, Local(Model(net.network), local_epochs=1, batch_size=4), **options)
    assert largest_difference(stacked, plain) > 1e-4
    params = stacked.params[0]
    x = fed.to(torch.float64)[0].x_test
    np.testing.assert_array_equal(
        stacked.outputs()["client-0"], Model(net.network).head(params, net.network(params, x))
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Augmented(LeNet(), padding=-1), "padding must be at least 0, got -1"),
        (lambda: Augmented(LeNet(), fill=()), r"fill must be one or more, got \(\)"),
        (
            lambda: Augmented(LeNet(), fill=(1.0, 2.0)).init((3, 32, 32), rng()),
            r"and 2 channels, .*, got \(3, 32, 32\)",
        ),
        (lambda: Augmented(MLP()).init((5,), rng()), r"expected images of shape .*, got \(5,\)"),
        (lambda: Augmented("lenet"), "network must be a Network, got 'lenet'"),
    ],
)
def test_what_cannot_be_augmented_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("alpha", [None, 6])
def test_a_gaussian_layer_has_a_mean_and_a_deviation_of_its_own_width(alpha):
    """Between φ (7 wide) and the head: V = 3 means and as many deviations, softplus of a linear layer."""
    model = Model(MLP(hidden=(), out=7, last="relu"), alpha=alpha, gaussian=3)
    assert model.parts == ("phi", "gaussian", *(["alpha"] if alpha else []), "beta")
    assert model.latent == 3
    params = model.init(spec(), rng(), model.parts)
    assert params["gaussian.weight"].shape == (7, 6)
    assert params["beta.weight"].shape == (alpha or 3, 4)
    x = torch.randn(5, 5, generator=rng())
    h = F.relu(F.linear(x, params["phi.0.weight"].T, params["phi.0.bias"]))
    both = F.linear(h, params["gaussian.weight"].T, params["gaussian.bias"])
    mean, deviation = model.posterior(params, x)
    torch.testing.assert_close(mean, both[:, :3])
    torch.testing.assert_close(deviation, torch.log1p(both[:, 3:].exp()) + 1e-4)
    assert torch.equal(model.embed(params, x), mean)
    assert model.head(params, mean).shape == (5, 4)
    params["gaussian.bias"] -= 500
    assert (model.posterior(params, x)[1] >= 1e-4).all(), "precisions must stay finite"


def test_flic_default_has_the_papers_widths():
    """FLIC, Appendix S3.3: hidden 64, latent 64."""
    shapes = {name: tuple(p.shape) for name, p in Model().init(spec((17,)), rng(), ("phi", "beta")).items()}
    assert shapes == {
        "phi.0.weight": (17, 64), "phi.0.bias": (64,), "phi.1.weight": (64, 64), "phi.1.bias": (64,),
        "phi.2.weight": (64, 64), "phi.2.bias": (64,), "beta.weight": (64, 4), "beta.bias": (4,),
    }  # fmt: skip


@pytest.mark.parametrize(("side", "flat"), [(28, 320), (16, 20)])
def test_cnn_is_what_torch_convolutions_compute(side, flat):
    net = CNN(out=9)
    params = net.init((1, side, side), rng())
    assert params["phi.2.weight"].shape == (flat, 9)
    x = torch.randn(3, 1, side, side)
    z = F.conv2d(x, params["phi.0.weight"].T.reshape(32, 1, 5, 5), params["phi.0.bias"])
    z = torch.sigmoid(F.max_pool2d(z, 2))
    z = F.conv2d(z, params["phi.1.weight"].T.reshape(20, 32, 5, 5), params["phi.1.bias"])
    z = torch.sigmoid(F.max_pool2d(z, 2)).flatten(1)
    torch.testing.assert_close(net(params, x), z @ params["phi.2.weight"] + params["phi.2.bias"], rtol=1e-4, atol=1e-5)


def test_dropout_of_a_cnn_is_by_channel_and_sample():
    assert CNN(channels=(4, 7), dropout=0.25).draws("phi") == {"phi.1.mask": Draw((7, 1, 1), "keep", "sample", 0.75)}


def test_cnn_refuses_what_it_cannot_read():
    with pytest.raises(ValueError, match="square images"):
        CNN().init((1, 28, 16), rng())
    with pytest.raises(ValueError, match="side 8 are too small"):
        CNN().init((1, 8, 8), rng())


def test_initial_weights_are_uniform_in_the_bound_of_the_true_width():
    weights = MLP(hidden=(400,), out=2).init((9,), rng())["phi.0.weight"]
    bound = 1 / math.sqrt(9)
    assert weights.abs().max() <= bound
    assert weights.abs().mean() == pytest.approx(bound / 2, rel=0.05)


def test_dropout_keeps_the_expected_share_and_the_mean():
    mask = Draw((50,), "keep", "sample", keep=0.5).sample((200, 4), rng(), torch.float64)
    assert mask.shape == (200, 4, 50)
    assert set(mask.unique().tolist()) == {0.0, 2.0}
    assert float(mask.mean()) == pytest.approx(1.0, abs=0.02)


def test_dropout_acts_in_training_and_not_in_prediction():
    net = Model(MLP(hidden=(64,), out=3, dropout=0.5))
    params = net.init(spec(), rng(), net.parts)
    x = torch.randn(4, 5)
    noise = {name: draw.sample((4,), rng(), torch.float32) for name, draw in net.draws().items()}
    assert list(noise) == ["phi.0.mask"]
    assert not torch.allclose(net.embed(params, x, noise), net.embed(params, x))


@pytest.mark.parametrize("network", [MLP, CNN])
@pytest.mark.parametrize("dropout", [-0.1, 1.0, 1.5, math.nan])
def test_dropout_leaves_something(network, dropout):
    with pytest.raises(ValueError, match=f"dropout must be .*, got {dropout}"):
        network(dropout=dropout)


def test_a_regression_head_has_one_output():
    net = Model(MLP(hidden=(7,), out=3), alpha=6)
    of = Spec("anna", (5,), 10, 0, (), 1, "regression")
    params = net.init(of, rng(), net.parts)
    assert params["beta.weight"].shape == (6, 1)
    assert net.head(params, net.embed(params, torch.randn(4, 5))).shape == (4, 1)


def test_the_penultimate_layer_is_what_the_head_reads():
    for net in (Model(MLP(out=3)), Model(MLP(out=3), alpha=6)):
        params = net.init(spec(), rng(), net.parts)
        z = torch.randn(4, 3)
        h = net.represent(params, z)
        assert h.shape == (4, net.alpha or 3)
        torch.testing.assert_close(net.head(params, z), h @ params["beta.weight"] + params["beta.bias"])


def test_a_list_is_the_tuple_that_is_meant():
    made = MLP(hidden=[8], out=3)
    assert (made, hash(made), made.hidden) == (MLP(hidden=(8,), out=3), hash(MLP(hidden=(8,), out=3)), (8,))


def test_layers_may_be_one_wide_and_no_narrower():
    assert MLP(hidden=(1, 5), out=1).hidden == (1, 5)
    for hidden in ((0, 5), (5, 0)):
        with pytest.raises(ValueError, match="at least 1, got 0"):
            MLP(hidden=hidden)


def test_one_input_is_scaled_by_one():
    """Uniform on ±1/√1."""
    drawn = linear_init(rng(), 1, 4000)
    assert 0.99 < float(drawn.abs().max()) <= 1


def test_a_network_that_is_named_stays():
    model = Model(MLP((3,), 2))
    assert model.resolved([(4,), (9,)]) is model
    assert Model().resolved([(4,), (9,)]).phi == Model().phi.of((4,))


# --- no embedding: logistic regression ------------------------------------------------------------------------------

ROWS = np.random.default_rng(0).normal(size=(2, 40, 3))
LABELS = [(x @ [1, -1, 0.5] + np.random.default_rng(1).normal(size=40) > 0).astype(int) for x in ROWS]
TWO = Federation([Client(x, y, x, y, name) for name, x, y in zip("ab", ROWS, LABELS, strict=True)])
EXACT = {"device": "cpu", "progress": False, "dtype": torch.float64}


def full_batches(**settings):
    return {"optimizer": "sgd", "batch_size": 40, **settings}


@pytest.mark.parametrize("n_classes", [2, 3])
def test_after_many_full_batches_a_linear_model_is_logistic_regression(n_classes):
    labels = [y if n_classes == 2 else y + (np.arange(40) % 5 == 0) for y in LABELS]
    fed = Federation([Client(x, y, x, y, name) for name, x, y in zip("ab", ROWS, labels, strict=True)], n_classes)
    run = simulate(fed, Local(Model(Linear()), local_steps=2000, lr=1.0, **full_batches()), rounds=1, **EXACT)
    for x, y, p in zip(ROWS, labels, run.probabilities().values(), strict=True):
        expected = LogisticRegression(C=np.inf, tol=1e-12, max_iter=10000).fit(x, y).predict_proba(x)
        np.testing.assert_allclose(p, expected, atol=1e-5)
        assert np.ptp(expected) > 0.9


def test_one_step_moves_the_log_odds_twice_as_far_as_a_single_output_would():
    lr = 0.3
    run = simulate(TWO, FedAvg(Model(Linear()), local_steps=1, lr=0.0, **full_batches()), rounds=1, **EXACT)
    moved = simulate(TWO, FedAvg(Model(Linear()), local_steps=1, lr=lr, **full_batches()), rounds=1, **EXACT)
    w, b = run.server["beta.weight"].numpy(), run.server["beta.bias"].numpy()
    odds, bias = w[:, 1] - w[:, 0], b[1] - b[0]
    slopes = [x.T @ (1 / (1 + np.exp(-(x @ odds + bias))) - y) / 40 for x, y in zip(ROWS, LABELS, strict=True)]
    now = moved.server["beta.weight"].numpy()
    np.testing.assert_allclose(now[:, 1] - now[:, 0] - odds, -2 * lr * np.mean(slopes, axis=0), rtol=1e-9)


@dataclass(frozen=True)
class FromZero(FedAvg):
    def init_shared(self, spec, rng):
        return {name: torch.zeros_like(p) for name, p in super().init_shared(spec, rng).items()}


def test_a_linear_model_is_torchs_identity():
    """Where both begin with the same weights: a module draws a number more."""
    runs = [simulate(TWO, FromZero(Model(phi), local_epochs=3), rounds=2, **EXACT) for phi in (Linear(), nn.Identity())]
    assert largest_difference(*runs) == 0
    assert list(runs[0].server) == ["beta.weight", "beta.bias"]
    loop = simulate(TWO, FromZero(Model(Linear()), local_epochs=3), rounds=2, engine="loop", **EXACT)
    assert largest_difference(runs[0], loop) < 1e-12


def test_linear_models_go_by_the_inputs_of_each_client():
    wide = np.random.default_rng(2).normal(size=(40, 5))
    fed = Federation([TWO[0], Client(wide, LABELS[1], wide, LABELS[1], "wide")])
    with pytest.raises(ValueError, match=r"client 'wide': Linear\(3\) takes 3 inputs, got samples of shape \(5,\)"):
        simulate(fed, Local(Model(Linear(3))), rounds=1, **EXACT)
    with pytest.raises(ValueError, match="one latent dimension in common, got k=3 on 'a' but k=5 on 'wide'"):
        simulate(fed, FedAvg(Model(Linear())), rounds=1, **EXACT)
    with pytest.raises(AttributeError, match=r"the width of Linear\(\) is that of the inputs"):
        _ = Linear().out
    x = {"left": ROWS[0], "right": ROWS[0]}
    blocks = Federation([Client(x, LABELS[0], x, LABELS[0], "a")])
    with pytest.raises(ValueError, match=r"client 'a': Linear\(\) takes one tensor, got blocks \['left', 'right'\]"):
        simulate(blocks, Local(Model(Linear())), rounds=1, **EXACT)


def test_linear_models_among_others():
    mixed = PerClient({"a": Linear(), "b": MLP((4,), 3)})
    run = simulate(TWO, Local(Model(mixed), local_epochs=1), rounds=1, **EXACT)
    assert {name.split(".")[0] for name in run.params[0]} == {"beta"}
    assert run.params[0]["beta.weight"].shape == run.params[1]["beta.weight"].shape
    with pytest.raises(ValueError, match=r"one latent dimension in common, got out=\[3, 4\]"):
        PerClient({"a": Linear(4), "b": MLP((4,), 3)})
    image = ROWS[0].reshape(40, 1, 1, 3)
    images = Federation([Client(image, LABELS[0], image, LABELS[0], "a")])
    run = simulate(images, Local(Model(Linear()), local_epochs=1), rounds=1, **EXACT)
    assert run.params[0]["beta.weight"].shape == (3, 2)


def test_a_linear_model_is_saved_and_comes_back(tmp_path):
    run = simulate(TWO, FedAvg(Model(Linear()), local_epochs=1), rounds=1, **EXACT)
    model = load_trained(run.save(tmp_path))
    assert model.method == run.method
    np.testing.assert_allclose(model.predict_proba(ROWS[0], "a"), run.probabilities()["a"], atol=1e-12)
