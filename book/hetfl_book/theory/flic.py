"""Why FLIC works: the linear case that can be proved.

Algorithm S3 of [1]_: Gaussian features, embeddings in closed form, FedRep [2]_ on what they give. (`flic_bound` has
Theorem S3 on it, `flic_distances` Theorem S2, on the statistics of the anchor term.) Everything is float64.
Clients with features of their own are a `LinearFederation`; once embedded they are two tensors, ``z`` of shape
(b, n, k) and ``y`` of shape (b, n).

References
----------
.. [1] A. Rakotomamonjy, M. Vono, H. J. Medina Ruiz, L. Ralaivola. Personalised federated learning on heterogeneous
   feature spaces. Transactions on Machine Learning Research, 2024.
.. [2] L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai. Exploiting shared representations for personalized federated
   learning. ICML, 2021.
.. [3] J. Delon, A. Desolneux, A. Salmona. Gromov-Wasserstein distances between Gaussian distributions. Journal of
   Applied Probability, 59, 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hetfl_core import checks
from hetfl_core.distances import principal_angle
from hetfl_core.errors import WrongValue
from hetfl_core.rng import SERVER, stream

LARGEST = 1e60
"""Beyond it a number does not count as finite: its fourth power, which the theory takes, would not be."""


# ---------------------------------------------------------------------------------------------------------------------
# Clients with Gaussian features
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AffineMap:
    """z = W (x − m).

    Attributes
    ----------
    weight : Tensor, shape (k, k_i)
        W.
    mean : Tensor, shape (k_i,)
        m.
    """

    weight: Tensor
    mean: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Rows (n, k_i) to rows (n, k)."""
        return (x - self.mean) @ self.weight.mT


@dataclass(frozen=True)
class LinearClient:
    """A client of Section 5 of [1]_: features N(m_i, Σ_i), labels linear in the oracle's embedding.

    Attributes
    ----------
    mean : Tensor, shape (k_i,)
    covariance : Tensor, shape (k_i, k_i)
    phi : AffineMap
        The oracle φ_i*, which no client knows.
    head : Tensor, shape (d,)
        The oracle β_i*.
    x, x_test : Tensor, shape (n, k_i), (n_test, k_i)
    y, y_test : Tensor, shape (n,), (n_test,)
    """

    mean: Tensor
    covariance: Tensor
    phi: AffineMap
    head: Tensor
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor


@dataclass(frozen=True)
class LinearFederation:
    """Clients that share A* and nothing else.

    Attributes
    ----------
    clients : tuple of LinearClient
    A : Tensor, shape (k, d)
        The oracle A*, of orthonormal columns.
    """

    clients: tuple[LinearClient, ...]
    A: Tensor

    @property
    def heads(self) -> Tensor:
        """B*, the oracle heads in its rows, shape (b, d)."""
        return torch.stack([client.head for client in self.clients])

    @property
    def oracle(self) -> list[AffineMap]:
        """The embeddings φ_i*."""
        return [client.phi for client in self.clients]

    def estimated(self, signs: Tensor | None = None) -> list[AffineMap]:
        """The embeddings φ̂_i of line 2 of Algorithm S3, from each client's own m_i and Σ_i (see `closed_form_phi`)."""
        k = self.A.shape[0]
        return [closed_form_phi(client.mean, client.covariance, k, signs) for client in self.clients]

    def embed(self, maps: Sequence[AffineMap], test: bool = False) -> tuple[Tensor, Tensor]:
        """Embedded features (b, n, k) and labels (b, n), of the training or the test samples."""
        z = [phi(client.x_test if test else client.x) for phi, client in zip(maps, self.clients, strict=True)]
        y = [client.y_test if test else client.y for client in self.clients]
        return torch.stack(z), torch.stack(y)


def linear_federation(
    n_clients: int = 100,
    k: int = 20,
    d: int = 2,
    n: int = 10,
    n_test: int = 200,
    extra: int = 20,
    freedom: Literal["common", "signs", "rotation"] = "common",
    seed: int = 0,
) -> LinearFederation:
    r"""Draw an instance of Section 5 of [1]_, :math:`y = (A^\star \beta_i^\star)^\top \phi_i^\star(x)`, under H1.

    Covariances have eigenvalues spread evenly in logarithm over 0.1…10, each moved a little, so that no two are equal.

    Parameters
    ----------
    n_clients, k, d : int
        b; dimensions of the latent space and of the shared representation, 1 ≤ d ≤ k.
    n, n_test : int
        Samples per client, n ≥ d.
    extra : int
        Client i has k_i features, k ≤ k_i ≤ k + extra.
    freedom : {"common", "signs", "rotation"}
        How the oracle's embeddings differ from `closed_form_phi`: not at all, as Appendix S2.1 assumes up to signs that
        all clients share; by signs :math:`Q_i` of each client's own; by a rotation of each client's own. Features are
        distributed as N(0, I) under all of them, and the x are the same.
    seed : int

    Returns
    -------
    LinearFederation

    Raises
    ------
    ValueError
        If a size does not fit.
    """
    checks.ints(0, n_test=n_test, extra=extra, seed=seed)
    checks.ints(1, n_clients=n_clients, k=k, d=d, n=n)
    if d > min(k, n):
        raise WrongValue(f"d must be at most k and n, got d={d}, k={k}, n={n}")
    checks.choice("freedom", freedom, ("common", "signs", "rotation"))
    width = k + extra / 2
    sizes = {"n_clients": n_clients, "k": k, "n": n, "n_test": n_test, "extra": extra}
    checks.memory(8 * n_clients * width * (n + n_test + width), **sizes)
    A = _haar(k, stream(seed, SERVER, 0, "A*"))[:, :d]
    return LinearFederation(
        tuple(_client(i, A, n, n_test, extra, freedom, seed) for i in range(n_clients)), A.contiguous()
    )


def _client(i: int, A: Tensor, n: int, n_test: int, extra: int, freedom: str, seed: int) -> LinearClient:
    """Client i of `linear_federation`; its features do not depend on `freedom`."""
    rng, k = stream(seed, f"client {i}", 0, "linear federation"), A.shape[0]
    k_i = k + int(torch.randint(extra + 1, (), generator=rng))
    mean = _normal(rng, k_i)
    spread = torch.logspace(1, -1, k_i, dtype=torch.float64) * (
        1 + 0.01 * torch.rand(k_i, generator=rng, dtype=torch.float32).double()
    )
    root = _haar(k_i, rng) * spread.sqrt()
    covariance = root @ root.mT
    head = torch.nn.functional.normalize(_normal(rng, A.shape[1]), dim=0) * A.shape[1] ** 0.5
    x = mean + _normal(rng, n + n_test, k_i) @ root.mT
    phi = _turned(closed_form_phi(mean, covariance, k), freedom, rng)
    y = phi(x) @ (A @ head)
    return LinearClient(mean, covariance, phi, head, x[:n], y[:n], x[n:], y[n:])


def _turned(phi: AffineMap, freedom: str, rng: torch.Generator) -> AffineMap:
    """Another map to N(0, I): the given one, followed by signs or a rotation."""
    k = phi.weight.shape[0]
    if freedom == "signs":
        return AffineMap(_signs(k, rng).unsqueeze(-1) * phi.weight, phi.mean)
    return AffineMap(_haar(k, rng) @ phi.weight, phi.mean) if freedom == "rotation" else phi


def closed_form_phi(mean: Tensor, covariance: Tensor, k: int, signs: Tensor | None = None) -> AffineMap:
    r"""Affine map of N(m, Σ) to N(0, I_k), line 2 of Algorithm S3 of [1]_ (Theorem 4.1 of [3]_).

    .. math:: \hat\phi(x) = \tilde I_k \begin{bmatrix} (D^{(k)})^{-1/2} & 0 \end{bmatrix} P^\top (x - m),
        \qquad \Sigma = P D P^\top

    with the eigenvalues in decreasing order. (The paper prints the zero block to the right of P^⊤, where the shapes do
    not fit.) The columns of P are known up to their signs: here the largest entry of each is positive, and `signs` are
    the diagonal of :math:`\tilde I_k`.

    Parameters
    ----------
    mean : Tensor, shape (k_i,)
    covariance : Tensor, shape (k_i, k_i)
    k : int
        At most k_i.
    signs : Tensor, shape (k,), optional
        Of ±1; +1 by default.

    Returns
    -------
    AffineMap

    Raises
    ------
    ValueError
        If k > k_i, Σ is not symmetric, one of its k largest eigenvalues is not positive, or signs are not ±1.
    """
    check_finite("mean", mean, (None,))
    k_i = len(mean)
    check_finite("covariance", covariance, (k_i, k_i), like="mean")
    checks.integer("k", k)
    if not 1 <= k <= k_i:
        raise WrongValue(f"k must be between 1 and the client's number of features, {k_i} (H1 (i)), got {k}")
    if not torch.allclose(covariance, covariance.mT):
        raise WrongValue("covariance must be symmetric")
    eigenvalues, P = torch.linalg.eigh(covariance.double())
    eigenvalues, P = eigenvalues.flip(-1)[:k], P.flip(-1)[:, :k]
    if eigenvalues[-1] <= k_i * torch.finfo(torch.float64).eps * eigenvalues[0]:
        raise WrongValue(f"covariance must have rank {k} at least, got eigenvalue {eigenvalues[-1]:.3g} in place {k}")
    P = P * P.gather(0, P.abs().argmax(0, keepdim=True)).sign()
    return AffineMap(_checked_signs(signs, k).unsqueeze(-1) * (P / eigenvalues.sqrt()).mT, mean)


def gromov_wasserstein_cost(covariance: Tensor, weight: Tensor) -> float:
    r"""What a linear map z = Wx of N(0, Σ) to N(0, WΣWᵀ) does to squared distances between two samples.

    .. math:: \mathbb{E} \bigl( \|x - x'\|^2 - \|z - z'\|^2 \bigr)^2 = 4 (\operatorname{tr} \Sigma -
        \operatorname{tr} \Sigma_z)^2 + 8 \|\Sigma\|_F^2 + 8 \|\Sigma_z\|_F^2 - 16 \|\Sigma W^\top\|_F^2

    with :math:`\Sigma_z = W \Sigma W^\top`: the Gromov–Wasserstein objective of [3]_ for the plan (x, Wx). It is the
    same for UW with any orthogonal U; among the maps to N(0, I_k) it is smallest where W keeps the k leading
    eigenvectors of Σ, in whatever coordinates.

    Parameters
    ----------
    covariance : Tensor, shape (k_i, k_i)
        Σ.
    weight : Tensor, shape (k, k_i)
        W.

    Returns
    -------
    float
    """
    cross = covariance @ weight.mT
    image = weight @ cross
    traces = 4 * (covariance.trace() - image.trace()) ** 2
    return float(traces + 8 * (covariance.square().sum() + image.square().sum()) - 16 * cross.square().sum())


def _checked_signs(signs: Tensor | None, k: int) -> Tensor:
    """The diagonal of Ĩ_k."""
    if signs is None:
        return torch.ones(k, dtype=torch.float64)
    checks.tensors(signs=signs)
    if signs.shape != (k,) or not bool((signs.abs() == 1).all()):
        raise WrongValue(f"signs must be k={k} numbers +1 or -1, got {checks.shown(signs.tolist())}")
    return signs.double()


def random_signs(k: int, seed: int = 0) -> Tensor:
    """A diagonal of ±1, shape (k,); where k > 1, both signs occur."""
    checks.integer("k", k, 1)
    checks.memory(8 * k, k=k)
    signs = _signs(k, stream(seed, SERVER, 0, "signs"))
    if k > 1 and signs.sum().abs() == k:
        signs[0] = -signs[0]
    return signs


def _normal(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def _signs(k: int, rng: torch.Generator) -> Tensor:
    return 2.0 * torch.randint(2, (k,), generator=rng).double() - 1


def _haar(k: int, rng: torch.Generator) -> Tensor:
    """An orthogonal matrix without preferred direction, shape (k, k)."""
    Q, R = torch.linalg.qr(_normal(rng, k, k))
    return Q * R.diagonal().sign()


# ---------------------------------------------------------------------------------------------------------------------
# Algorithm S3
# ---------------------------------------------------------------------------------------------------------------------


def method_of_moments(z: Tensor, y: Tensor, d: int) -> Tensor:
    r"""Initial A^(0), lines 4–6 of Algorithm S3: the d leading eigenvectors of :math:`\frac1b \sum_i Z_i`.

    Each client sends :math:`Z_i = \frac1n \sum_j (y_i^{(j)})^2 z_i^{(j)} [z_i^{(j)}]^\top`. For z ~ N(0, I) and
    y = w^⊤ z its mean is :math:`\|w\|^2 I + 2 w w^\top`, so that the leading eigenvectors span the clients' w.

    Parameters
    ----------
    z : Tensor, shape (b, n, k)
    y : Tensor, shape (b, n)
    d : int

    Returns
    -------
    Tensor, shape (k, d)
        Of orthonormal columns.
    """
    _check_data(z, y, d)
    moments = torch.einsum("ij,ijp,ijq->pq", y.square(), z, z) / y.numel()
    return torch.linalg.eigh(moments)[1].flip(-1)[:, :d].contiguous()


def least_squares_heads(A: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """Exact heads of all clients for a given A, line 12 of Algorithm S3.

    Parameters
    ----------
    A : Tensor, shape (k, d)
    z : Tensor, shape (b, n, k)
    y : Tensor, shape (b, n)

    Returns
    -------
    Tensor, shape (b, d)
    """
    check_finite("A", A, (None, None))
    _check_data(z, y, A.shape[1])
    check_finite("A", A, (z.shape[2], None))
    checks.same_dtype(A=A, z=z, y=y)
    return torch.linalg.lstsq(z @ A, y.unsqueeze(-1)).solution.squeeze(-1)


def representation_step(A: Tensor, heads: Tensor, z: Tensor, y: Tensor, step: float) -> Tensor:
    r"""Gradient step of the clients and the server's mean, lines 14–18: :math:`\bar A^{(t+1)}`, not orthonormal.

    .. math:: \bar A = A + \frac{\eta}{b' n} \sum_{ij} \bigl(y_i^{(j)} - (A \beta_i)^\top z_i^{(j)}\bigr)
        z_i^{(j)} \beta_i^\top

    η is that of Theorem S3; line 14 has the gradient of a sum over samples in place of half their mean, so that its η
    is ours divided by 2n.

    Parameters
    ----------
    A : Tensor, shape (k, d)
    heads : Tensor, shape (b', d)
    z, y : Tensor, shape (b', n, k), (b', n)
    step : float
        η.

    Returns
    -------
    Tensor, shape (k, d)
    """
    check_finite("A", A, (None, None))
    _check_data(z, y, A.shape[1])
    check_finite("A", A, (z.shape[2], None))
    check_finite("heads", heads, (len(z), A.shape[1]))
    checks.same_dtype(A=A, heads=heads, z=z, y=y)
    checks.number("step", step, -LARGEST, LARGEST)
    residual = y - torch.einsum("ijp,ip->ij", z, heads @ A.mT)
    return A + step / y.numel() * torch.einsum("ij,ijp,iq->pq", residual, z, heads)


def flic_fedrep(
    z: Tensor,
    y: Tensor,
    d: int,
    rounds: int = 200,
    step: float = 0.25,
    participation: float = 1.0,
    start: Tensor | None = None,
    seed: int = 0,
) -> Tensor:
    """Algorithm S3 of [1]_ on embedded features, line by line.

    Parameters
    ----------
    z : Tensor, shape (b, n, k)
        Features as embedded by φ̂_i (or by the oracle, which makes it FedRep [2]_).
    y : Tensor, shape (b, n)
    d : int
        Columns of A.
    rounds : int
        T.
    step : float
        η in the normalisation of Theorem S3, see `representation_step`.
    participation : float
        r in (0, 1]; ⌊rb⌋ clients, at least one, are active in a round.
    start : Tensor, shape (k, d), optional
        A^(0) of orthonormal columns; `method_of_moments` by default.
    seed : int
        Of the choice of active clients.

    Returns
    -------
    Tensor, shape (T + 1, k, d)
        A^(0), …, A^(T), each with orthonormal columns.

    Raises
    ------
    ValueError
        If shapes do not fit, there are fewer than d samples per client, or r is not in (0, 1].
    """
    _check_data(z, y, d)
    checks.integer("rounds", rounds, 0)
    checks.number("step", step, 0, LARGEST)
    checks.fraction("participation", participation)
    checks.seed(seed)
    checks.memory(8 * (rounds + 1) * z.shape[-1] * d, rounds=rounds)
    if start is not None:
        check_finite("start", start, (z.shape[-1], d))
        checks.same_dtype(start=start, z=z)
    b = len(z)
    A = method_of_moments(z, y, d) if start is None else start
    path = [A]
    for t in range(rounds):
        active = torch.randperm(b, generator=stream(seed, SERVER, t, "active"))[: _n_active(b, participation)]  # line 8
        heads = least_squares_heads(A, z[active], y[active])  # line 12
        mean = representation_step(A, heads, z[active], y[active], step)  # lines 14 to 18
        A = torch.linalg.qr(mean)[0]  # line 19
        path.append(A)
    return torch.stack(path)


def distances_to(path: Tensor, truth: Tensor) -> Tensor:
    """dist(A^(t), truth) for t = 0 … T, shape (T + 1,): the sine of the largest principal angle."""
    return principal_angle(path, truth.expand_as(path))


def prediction_errors(path: Tensor, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> Tensor:
    """Mean squared error on test samples after each round, heads fitted to the training samples, shape (T + 1,).

    Parameters
    ----------
    path : Tensor, shape (T + 1, k, d)
    train, test : (z, y), of shapes (b, n, k), (b, n)
    """
    errors = []
    for A in path:
        fitted = least_squares_heads(A, *train) @ A.mT
        errors.append((test[1] - torch.einsum("ijp,ip->ij", test[0], fitted)).square().mean())
    return torch.stack(errors)


def measured_rate(distances: Tensor, floor: float = 1e-10) -> float:
    """Factor by which a distance shrinks in a round: exp of the least-squares slope of log dist, while above `floor`.

    Parameters
    ----------
    distances : Tensor, shape (T + 1,)
    floor : float
        Below it rounding takes over.
    """
    checks.tensors(distances=distances)
    checks.number("floor", floor, 0, 1)
    if distances.dim() != 1 or not bool(((distances >= 0) & distances.isfinite()).all()):
        raise WrongValue(f"distances must be finite, at least 0, of shape (T + 1,), got shape {tuple(distances.shape)}")
    above = distances > floor
    rounds = len(distances) if bool(above.all()) else int((~above).int().argmax())
    if rounds < 2:
        raise WrongValue(f"expected two distances at least above floor={floor:g} to measure a rate, got {rounds}")
    return float(np.exp(np.polyfit(np.arange(rounds), distances[:rounds].log().numpy(), 1)[0]))


def _n_active(b: int, participation: float) -> int:
    """⌊rb⌋, at least one; the small term undoes the rounding of products like 0.29 · 100."""
    return max(int(participation * b + 1e-9), 1)


def check_finite(name: str, value: Any, shape: Sequence[int | None], like: str = "") -> None:
    """Finite numbers of this shape, None for any size but 0; `like` is the argument that the shape is from."""
    checks.tensors(**{name: value})
    fits = (have == want or (want is None and have) for have, want in zip(value.shape, shape))
    if value.dim() != len(shape) or not all(fits) or not bool((value.abs() < LARGEST).all()):
        wanted = ", ".join("·" if size is None else str(size) for size in shape)
        wanted = f"({wanted}), as {like} has" if like else f"({wanted})"
        raise WrongValue(f"{name} must be finite numbers of shape {wanted}, got shape {tuple(value.shape)}")


def _check_data(z: Tensor, y: Tensor, d: int) -> None:
    check_finite("z", z, (None, None, None))
    check_finite("y", y, z.shape[:2], like="z")
    checks.integer("d", d)
    checks.same_dtype(z=z, y=y)
    if not 1 <= d <= min(z.shape[1:]):
        raise WrongValue(f"d must be between 1 and both n and k of z, got d={d}, n={z.shape[1]}, k={z.shape[2]}")
