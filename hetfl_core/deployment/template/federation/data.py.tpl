"""A client's own data. This file is sent to every client: it says how data are read, never what they are."""

from hetfl_core import Client
from hetfl_core.deployment import client_from_file


def load(config: dict) -> Client:
    """Read the data of the client on whose machine this runs.

    `config` is what its owner told the SuperNode (``hetfl deploy client --name … --data …``): ``name`` and ``data``,
    the path of a file. `client_from_file` reads a CSV file with a column ``label``, or an NPZ file with ``x`` and ``y``
    (or ``x_train``, ``y_train``, ``x_test``, ``y_test``); the columns may be others on each client, or come in another
    order. Where labels are words, say ``classes=["no", "yes"]``: the order that all clients have agreed on.

    A table with gaps and words is prepared on each client by its own training rows, as by `Federation.from_csv`:

        prepare = Preparation(categories=["cp"], missing={"chol": [0]})
        return client_from_file(config["data"], config["name"], label="ill", prepare=prepare, agreed=config["agreed"])

    Before the first round the clients then tell the server the names of their columns and the levels of categories, and
    are told those of all; no number of a table leaves a client for that. ``view="common"`` keeps the columns that all
    clients have, ``"zeros"`` puts zeros for those that one lacks, ``"blocks"`` makes named blocks of them.

    For your own format, return ``Client(x_train, y_train, x_test, y_test, name)``: arrays of any width. A subject of
    one of MOABB's data sets, for instance, whose electrodes decide the width:

        from moabb.datasets import BNCI2014_001
        from moabb.paradigms import MotorImagery
        from pyriemann.estimation import Covariances
        from pyriemann.tangentspace import TangentSpace

        x, labels, meta = MotorImagery(n_classes=2).get_data(BNCI2014_001(), subjects=[int(config["subject"])])
        train = (meta["session"] == meta["session"].iloc[0]).to_numpy()
        covariances = Covariances("oas").fit_transform(x)
        x = TangentSpace().fit(covariances[train]).transform(covariances)
        y = (labels == "right_hand").astype(int)
        return Client(x[train], y[train], x[~train], y[~train], str(config["name"]))
    """
    return client_from_file(str(config["data"]), str(config["name"]))
