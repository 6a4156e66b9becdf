"""The door of a federation: what clients need of the server's port is let through, and nothing else.

Flower's SuperLink serves its clients and its owner on one port. Clients must prove who they are by their keys, the
owner needs to prove nothing: whoever reaches that port lists the clients, lets others in, starts and stops runs, reads
their logs, and with a run executes code at the server and beside every client's data. Accounts, by which Flower could
tell the owner from others, are not part of what it gives away. So `hetfl deploy server` has it listen on this machine
alone, and clients come in through a proxy that forwards the paths in `FLEET`, exactly these.
"""

from __future__ import annotations

import http.client
import ipaddress
import ssl
from pathlib import Path

from hetfl_core.errors import WrongValue

FLEET = tuple(
    f"/v1/fleet/{what}"
    for what in (
        *("activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages"),
        *("get-run", "get-fab", "push-object", "pull-object", "confirm-message-received"),
    )
)
"""Paths that a client with a key asks for, all by POST."""

OWNERS = ("/v1/control/list-nodes", "/v1/runtime/get-nodes", "/openapi.json")
"""Paths of a SuperLink that are nothing to clients: of its owner, of its own processes, of whoever looks around."""

REFUSALS = (401, 403, 404)
"""How a proxy answers that does not forward."""


def is_local(host: str) -> bool:
    """Whether an address is one that this machine alone can reach."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def host_and_port(address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT.

    Raises
    ------
    ValueError
        For what is neither.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise WrongValue(f"an address must be HOST:PORT, such as server.example.org:8443, got {address!r}")
    return host.strip("[]"), int(port)


def forwarded(address: str, certificate: Path, patience: float = 10.0) -> list[str]:
    """Which of the paths that are nothing to clients are open to everybody, without a key.

    Parameters
    ----------
    address : str
        HOST:PORT of a server, as its clients call it.
    certificate : Path
        The one to trust.
    patience : float
        Seconds for which an answer is waited for.

    Returns
    -------
    list of str
        Those of `OWNERS` whose answer is no refusal, with that answer. Who looks changes nothing at the server.

    Raises
    ------
    ConnectionError
        Where nobody answers, or with another certificate.
    """
    host, port = host_and_port(address)
    trusted = ssl.create_default_context(cafile=str(certificate))
    found = []
    for path in OWNERS:
        line = http.client.HTTPSConnection(host, port, timeout=patience, context=trusted)
        try:
            line.request("GET" if path.endswith(".json") else "POST", path, headers={"Accept": "*/*"})
            status = line.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionError(f"{address} does not answer ({error})") from error
        finally:
            line.close()
        if status not in REFUSALS:
            found.append(f"{path} ({status})")
    return found
