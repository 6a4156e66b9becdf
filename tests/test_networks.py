import math

import pytest
import torch
import torch.nn.functional as F

from hetfl_core.federation import Spec
from hetfl_core.networks import CNN, MLP, Draw, Model, linear_init
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
