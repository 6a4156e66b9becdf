"""Secure aggregation: the server learns the weighted sum of the uploads, and nothing of any single one.

The protocol is Flower's SecAgg+ (Bell et al. 2020, after Bonawitz et al. 2017): clients add masks that cancel in the
sum, and share the keys of the masks so that who drops out does no harm. What is done here is to lay uploads out as one
vector, whose entries must lie within a range and are rounded to one of 2²² values, and to read the means off the sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hetfl_core.deployment import wire
from hetfl_core.deployment.layout import Layout
from hetfl_core.deployment.site import Reply

if TYPE_CHECKING:
    from flwr.app import RecordDict
    from flwr.serverapp import Grid

LAYOUT = "layout"
"""Record of a message that says how an upload is to be laid out."""


def answer(vector: np.ndarray, reply: Reply) -> RecordDict:
    """A client's answer, whose vector Flower's mod then masks; loss terms go along."""
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
    from flwr.compat.common import recorddict_compat as compat

    result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([vector]), 1, dict(reply.terms))
    return compat.fitres_to_recorddict(result, True)  # type: ignore[no-any-return]


def secure_sum(
    grid: Grid, contents: Mapping[int, Any], *, timeout: float, clipping_range: float
) -> tuple[np.ndarray | None, dict[int, Reply]]:
    """Have nodes train, and learn the sum of what they send.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
    contents : dict of int to flwr.app.RecordDict
        What each node is asked, with a `LAYOUT`.
    timeout : float
        Seconds to wait, in each of the four steps.
    clipping_range : float
        Entries are clipped to ± this.

    Returns
    -------
    ndarray or None
        The sum over the nodes that answered; None where too few did for the masks to be taken off.
    dict of int to Reply
        Of these nodes, without uploads.
    """
    from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
    from flwr.common import FitIns, Parameters, parameters_to_ndarrays
    from flwr.server.compat.legacy_context import LegacyContext
    from flwr.server.workflow import SecAggPlusWorkflow
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key

    nothing = Parameters([], "numpy.ndarray")
    found: dict[str, Any] = {"sum": None, "replies": {}}

    @dataclass(frozen=True)
    class Node:
        node_id: int

    class Strategy:
        """Who takes part, and what is done with the result."""

        def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Sequence[Any]:
            return [(Node(node), FitIns(nothing, {})) for node in contents]

        def aggregate_fit(self, server_round: int, results: Sequence[Any], failures: Sequence[Any]) -> Any:
            (mean,) = parameters_to_ndarrays(results[0][1].parameters)
            found["sum"] = mean * len(results)
            for node, result in results:
                found["replies"][node.node_id] = Reply(terms={k: float(v) for k, v in result.metrics.items()})
            return None, {}

    class Manager:
        """Flower asks it for its log."""

        def num_available(self) -> int:
            return len(contents)

    class Workflow(SecAggPlusWorkflow):  # type: ignore[misc]
        """Sends what is asked of each node along with the keys."""

        def collect_masked_vectors_stage(self, grid: Any, context: Any, state: Any) -> bool:
            for node, content in contents.items():
                for name, record in content.items():
                    state.nid_to_fitins[node][name] = record
            return bool(super().collect_masked_vectors_stage(grid, context, state))

    state = RecordDict({MAIN_CONFIGS_RECORD: ConfigRecord({Key.CURRENT_ROUND: 1}), MAIN_PARAMS_RECORD: ArrayRecord()})
    own = Context(run_id=0, node_id=0, node_config={}, state=state, run_config={})
    workflow = Workflow(1.0, 0.5, max_weight=1.0, clipping_range=float(clipping_range), timeout=timeout)
    workflow(grid, LegacyContext(own, strategy=Strategy(), client_manager=Manager()))  # type: ignore[arg-type]
    return found["sum"], found["replies"]


def layout_of(content: RecordDict) -> Layout:
    """The layout that a message asks for.

    Raises
    ------
    hetfl_core.deployment.wire.WireError
        Where it has none.
    """
    try:
        return Layout.unpacked(str(content[LAYOUT]["json"]))  # type: ignore[call-overload, index]
    except (KeyError, TypeError, ValueError) as error:
        raise wire.WireError(f"expected the layout of a sum, got {error}") from error
