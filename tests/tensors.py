"""Random tensors for the tests, and what they compare."""

import pytest
import torch


def rng(seed):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64).to(dtype)


def covariance(*batch, k=4, rank=None, seed=0):
    A = normal(*batch, k, rank or k + 2, seed=seed)
    return A @ A.mT / A.shape[-1]


def rotation(k, seed=0):
    return torch.linalg.qr(normal(k, k, seed=seed)).Q


def value_and_gradients(function, *tensors):
    leaves = [t.clone().requires_grad_() for t in tensors]
    value = function(*leaves)
    value.sum().backward()
    return value.detach(), [t.grad for t in leaves]


def agree(a, b, tolerance=1e-8):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def refuses_a_second_derivative(function, x):
    """Both ways of asking for one end in an error."""
    leaf = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(function(leaf) + leaf.square().sum(), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        grad.square().sum().backward()
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.func.grad(lambda x: torch.func.grad(function)(x).square().sum())(x)
