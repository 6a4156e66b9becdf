"""Secure aggregation: the server learns the weighted sum of the uploads, and nothing of any single one.

The protocol is Flower's SecAgg+ (Bell et al. 2020, after Bonawitz et al. 2017): clients add masks that cancel in the
sum, and share the keys of the masks so that who drops out does no harm. What is done here is to lay uploads out as one
vector, whose entries must lie within a range and are rounded to one of 2²² values, to read the means off the sum, and
to make the masks of the whole of their keys.

Loss terms and accuracies are told openly, client by client. Of two clients each knows the other's upload by the sum,
and of k any k − 1 do.
"""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hetfl_core.errors import RunError, WrongValue
from hetfl_core.networks import Params

if TYPE_CHECKING:
    from flwr.app import RecordDict
    from flwr.serverapp import Grid

MASKED = 8
"""Bytes of a masked entry on the wire."""


@dataclass(frozen=True)
class SumLayout:
    """Where each tensor stands in the vector that is summed: one tensor after the other, then a weight for each.

    Parameters
    ----------
    shapes : dict of str to tuple of int
        Of all tensors that some client sends.
    share : float
        The client's weight among the participants, in (0, 1].
    limit : float
        Entries of the vector must lie within ± this.
    """

    shapes: Mapping[str, Sequence[int]]
    share: float
    limit: float = 8.0

    @property
    def length(self) -> int:
        """Number of entries of the vector that is summed."""
        return sum(math.prod(shape) for shape in self.shapes.values()) + len(self.shapes)

    def vector(self, upload: Params) -> np.ndarray:
        """The vector of an upload times the client's share; zeros for what it does not send.

        Parameters
        ----------
        upload : dict of str to Tensor

        Returns
        -------
        ndarray, shape (length,)

        Raises
        ------
        ValueError
            For tensors of other names or shapes, and numbers that are not finite or beyond the limit, which the server
            could not tell.
        """
        if more := sorted(upload.keys() - self.shapes.keys()):
            raise WrongValue(f"its upload has {more[0]!r}, which the server does not expect")
        parts, weights = [], []
        for name, shape in self.shapes.items():
            sent = upload.get(name)
            if sent is not None and tuple(sent.shape) != tuple(shape):
                raise WrongValue(f"its {name!r} must have shape {tuple(shape)}, got {tuple(sent.shape)}")
            if sent is not None and not bool(sent.isfinite().all()):
                raise WrongValue(f"its {name!r} holds numbers that are NaN or infinite")
            flat = np.zeros(math.prod(shape)) if sent is None else sent.double().cpu().numpy().ravel()
            if (most := float(np.abs(flat).max(initial=0.0)) * self.share) > self.limit:
                raise WrongValue(
                    f"its {name!r} times its share reaches {most:.3g}, beyond the clipping range of ± {self.limit:g}: "
                    "set a larger 'clipping-range'"
                )
            parts.append(self.share * flat)
            weights.append(0.0 if sent is None else self.share)
        return np.concatenate([*parts, np.array(weights)])

    def means(self, total: np.ndarray, like: Mapping[str, torch.dtype]) -> Params:
        """The weighted means over those that sent a tensor, from the sum of the vectors.

        Parameters
        ----------
        total : ndarray, shape (length,)
        like : dict of str to torch.dtype
            Type of each tensor.

        Returns
        -------
        dict of str to Tensor
            Without the tensors that nobody sent.
        """
        means, begin, first = {}, 0, self.length - len(self.shapes)
        for index, (name, shape) in enumerate(self.shapes.items()):
            end = begin + math.prod(shape)
            weight = float(total[first + index])
            if weight > self.share * 1e-3:
                means[name] = torch.as_tensor(total[begin:end] / weight).reshape(tuple(shape)).to(like[name])
            begin = end
        return means


def masks(seed: bytes, modulus: int, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Masks of a key, of which nobody can tell one number who knows all others but not the key.

    In the place of Flower's, which makes 32 bits of a key and gives these to a generator that is none for secrets: a
    server that tries out all of them has the mask.

    Parameters
    ----------
    seed : bytes
        The key; all of it counts.
    modulus : int
        A power of two, 2⁶² at most.
    shapes : sequence of tuple of int

    Returns
    -------
    list of ndarray of int64, of these shapes
        In [0, modulus).
    """
    sizes = [math.prod(shape) for shape in shapes]
    drawn = np.frombuffer(hashlib.shake_256(b"mask" + seed).digest(8 * sum(sizes)), "<u8") % np.uint64(modulus)
    parts = np.split(drawn.astype(np.int64), np.cumsum(sizes)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def keep_masks_secret() -> None:
    """Have Flower's two sides of the protocol make their masks by `masks`."""
    for name in (
        "client.mod.secure_aggregation.secaggplus_mod",
        "server.workflow.secure_aggregation.secaggplus_workflow",
    ):
        module = importlib.import_module(f"flwr.{name}")
        if not hasattr(module, "pseudo_rand_gen"):
            raise RunError(f"flwr.{name} makes its masks in another way than the version of Flower that we know")
        setattr(module, "pseudo_rand_gen", masks)  # noqa: B010


def answer(vector: np.ndarray, terms: Mapping[str, float]) -> RecordDict:
    """A client's answer, whose vector Flower's mod then masks; loss terms go along."""
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
    from flwr.compat.common import recorddict_compat as compat

    result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([vector]), 1, dict(terms))
    return compat.fitres_to_recorddict(result, True)  # type: ignore[no-any-return]


def secure_sum(
    grid: Grid, contents: Mapping[int, Any], *, timeout: float, clipping_range: float
) -> tuple[np.ndarray | None, dict[int, dict[str, float]]]:
    """Have nodes train, and learn the sum of what they send.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
    contents : dict of int to flwr.app.RecordDict
        What each node is asked, with a `SumLayout`.
    timeout : float
        Seconds to wait, in each of the four steps.
    clipping_range : float
        Entries are clipped to ± this.

    Returns
    -------
    ndarray or None
        The sum over the nodes that answered; None where too few did for the masks to be taken off.
    dict of int to dict of str to float
        Loss terms of these nodes.
    """
    from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
    from flwr.common import FitIns, Parameters, parameters_to_ndarrays
    from flwr.server.compat.legacy_context import LegacyContext
    from flwr.server.workflow import SecAggPlusWorkflow
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key

    keep_masks_secret()
    nothing = Parameters([], "numpy.ndarray")
    found: dict[str, Any] = {"sum": None, "terms": {}}

    class Strategy:
        """Who takes part, and what is done with the result."""

        def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Sequence[Any]:
            return [(SimpleNamespace(node_id=node), FitIns(nothing, {})) for node in contents]

        def aggregate_fit(self, server_round: int, results: Sequence[Any], failures: Sequence[Any]) -> Any:
            (mean,) = parameters_to_ndarrays(results[0][1].parameters)
            found["sum"] = mean * len(results)
            found["terms"] = {node.node_id: dict(result.metrics) for node, result in results}
            return None, {}

    class Workflow(SecAggPlusWorkflow):  # type: ignore[misc]
        """Sends what is asked of each node along with the keys."""

        def collect_masked_vectors_stage(self, grid: Any, context: Any, state: Any) -> bool:
            for node, content in contents.items():
                for name, record in content.items():
                    state.nid_to_fitins[node][name] = record
            return bool(super().collect_masked_vectors_stage(grid, context, state))

    state = RecordDict({MAIN_CONFIGS_RECORD: ConfigRecord({Key.CURRENT_ROUND: 1}), MAIN_PARAMS_RECORD: ArrayRecord()})
    own = Context(run_id=0, node_id=0, node_config={}, state=state, run_config={})
    manager = SimpleNamespace(num_available=lambda: len(contents))  # Flower asks it for its log
    workflow = Workflow(1.0, 0.5, max_weight=1.0, clipping_range=float(clipping_range), timeout=timeout)
    workflow(grid, LegacyContext(own, strategy=Strategy(), client_manager=manager))  # type: ignore[arg-type]
    return found["sum"], found["terms"]
