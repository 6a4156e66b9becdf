"""All attacks on one run: what `hetfl_book.papers.privacy` writes into records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hetfl_book.attacks import inversion, labels, linking, membership
from hetfl_book.attacks.scores import Array, auc, bootstrap_interval, caught
from hetfl_book.attacks.watching import Message, Seen, averaged, schedule, unmix
from hetfl_core import checks
from hetfl_core.engine.run import Run
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Client
from hetfl_core.methods import Ditto, FedCMA, FedPAC, HyFEM, Method
from hetfl_core.networks import Params

Counts = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class _Attacker:
    """Server and colluder together: the run's method, the colluder's data and model. `kept` is what victims hold."""

    method: Method
    client: Client
    own: Params
    kept: Mapping[str, Params]

    def logits(self, params: Params, x: Any) -> Tensor:
        """Of a whole model."""
        if isinstance(self.method, Ditto):  # the model that is averaged, not the personal one
            return Method.predict(self.method, params, {}, x)
        return self.method.predict(params, params, x)

    def losses(self, sent: Sequence[Message], x: Any, y: Tensor, calibrated: bool) -> Array:
        """Scores of samples by their losses, zeros where nothing was sent."""
        if not sent:
            return np.zeros(len(y))
        return membership.loss_scores(self.logits, self.own, sent, x, y, calibrated)

    def embed(self, params: Params, x: Tensor) -> Array:
        """What class means are means of."""
        with torch.no_grad():
            if isinstance(self.method, FedCMA | FedPAC):
                z = self.method.model.features(params, x)
            else:
                z = self.method.model.embed(params, x)
        return z.double().nan_to_num().numpy()


def survey(run: Run, seen: Seen, colluder: str, *, seed: int = 0) -> dict[str, float]:
    """Figures of all attacks on a run, on single messages and (``…_summed``) on sums of each round.

    Parameters
    ----------
    run : Run
        Of a classification.
    seen : Seen
        From `hetfl_book.attacks.watching.listen`, of the same run.
    colluder : str
        The client that works with the server: it brings its data and its model, and is not attacked.
    seed : int
        Draws which clients' labels the attacker knows, and bootstraps.

    Returns
    -------
    dict of str to float
        What cannot be tried, because nothing of the kind is sent, is left out.

        ============================================ ==================================================================
        ``presence_direct``, ``presence_learned``    AUC of "holds the class": read off; from half of the others (0.5)
        ``shares_direct``, ``shares_learned``        total variation to the true shares; ``shares_chance``: mean shares
        ``link``, ``link_chance``                    names found again from round to round
        ``alike``                                    rank correlation of nearness and likeness of classes (0)
        ``loss``, ``yeom``                           membership: AUC of the fall of the loss, of the last loss (0.5)
        ``means``, ``means_embedding``               the same from class means: in an embedding that the attacker has;
                                                     in the client's own, if that leaked (0.5)
        ``near_anchor_embedding``                    the same by nearness to FLIC's anchor as it was received: of the
                                                     embedding alone, which was trained towards it (0.5)
        ``…_caught``                                 members found at 5 % false alarms (0.05)
        ``…_low``, ``…_high``                        95 % bootstrap over clients
        ``cosine``, ``error`` (``…_embedding``)      class means decoded to inputs (0, and 1 for the attacker's own)
        ``told_n_train``, ``told_class_counts``      1 where the server's hooks read them, whatever is sent
        ============================================ ==================================================================

    Notes
    -----
    Figures of a leaked embedding mix two leaks: an embedding that was trained on members treats them differently
    whatever is sent. What the message adds is what ``means_embedding`` has over ``means_embedding_summed``, where the
    message is a mean over clients. Of FLIC, which sends the way from an anchor to the client's means, it is below 0.5:
    members lie nearer to the anchor, against that way.
    """
    checks.instance("run", run, Run)
    checks.instance("seen", seen, Seen)
    fed = run.federation
    if fed.task != "classification":
        raise WrongValue(f"run must be of a classification, got one of a {fed.task}")
    indices = {client.name: i for i, client in enumerate(fed)}
    if colluder not in indices:
        raise WrongValue(f"colluder must be one of the clients {sorted(indices)[:3]} …, got {colluder!r}")
    counts = {c.name: np.bincount(c.y_train.numpy(), minlength=fed.n_classes).tolist() for c in fed}
    found = {f"told_{what}": float(what in seen.told) for what in ("n_train", "class_counts")}
    single = seen.uploads
    kept = {name: run.client_states[i] for name, i in indices.items()}
    attacker = _Attacker(run.method, fed[colluder], run.params[indices[colluder]], kept)
    victims = [name for name in indices if name != colluder]
    found |= _of_labels(single, counts, victims, seed)
    found |= _of_labels_summed(single, counts, victims)
    if isinstance(run.method, HyFEM) and run.method.model.blocks is not None:
        last = [m for name in victims for m in [m for m in single if m.client == name][-1:]]
        layers = [_classifier(m) for m in last]
        matched = [linking.in_place(m, run.server[f"index/{m.client}"]) for m in layers]
        for key, some in (("alike_layer", layers), ("alike_matched", matched)):
            found[key] = linking.alike(labels.move_vectors([replace(m, round=0) for m in some]), counts)
    for suffix, messages in (("", single), ("_summed", averaged(single))):
        figures = _of_samples(run, messages, attacker, victims, seed)
        found |= {name + suffix: value for name, value in figures.items()}
    return {name: float(value) for name, value in found.items() if not math.isnan(value)}


def _classifier(m: Message) -> Message:
    """The part that HyFEM matches."""
    return replace(m, sent={n: p for n, p in m.sent.items() if n.startswith(("phi.joint.", "beta."))}, received={})


# --- labels and names -------------------------------------------------------------------------------------------------


def _of_labels(messages: Sequence[Message], counts: Counts, victims: Sequence[str], seed: int) -> dict[str, float]:
    C = len(counts[victims[0]])
    shares = {n: np.array(counts[n], float) / sum(counts[n]) for n in victims}
    rest = {n: np.mean([shares[m] for m in victims if m != n], 0) for n in victims}
    found = {"shares_chance": labels.distance(rest, counts)}
    mine = [m for m in messages if m.client in shares]
    features = {n: np.zeros(0) for n in victims} | labels.move_vectors(mine)
    wide = max(map(len, features.values()))
    features = {n: row if len(row) == wide else np.zeros(wide) for n, row in features.items()}
    learned = labels.halves(features, shares, seed)
    found["presence_learned"] = float(np.nanmean([labels.presence(half, counts) for half in learned]))
    found["shares_learned"] = float(np.mean([labels.distance(half, counts) for half in learned]))
    found |= {"alike": linking.alike(features, {n: counts[n] for n in victims})}
    found |= dict(zip(("link", "link_chance"), linking.link(mine), strict=True))
    direct = _by_client(mine, lambda m: labels.direct_scores(m, C))
    told = _by_client(mine, lambda m: labels.sample_shares(m, C))
    if direct:
        found["presence_direct"] = labels.presence(direct, counts)
    if told:
        found["shares_direct"] = labels.distance(told, counts)
    return found


def _by_client(messages: Sequence[Message], read: Any) -> dict[str, Array]:
    rows: dict[str, list[Array]] = {}
    for m in messages:
        if (row := read(m)) is not None:
            rows.setdefault(m.client, []).append(row)
    return {name: np.mean(each, 0) for name, each in rows.items()}


def _of_labels_summed(messages: Sequence[Message], counts: Counts, victims: Sequence[str]) -> dict[str, float]:
    """Scores of the classes of each round's mean, told apart by who took part."""
    if not messages:
        return {}
    clients, rounds, took_part = schedule(messages)
    firsts = {m.round: m for m in reversed(averaged(messages))}
    scores = [labels.direct_scores(firsts[t], len(counts[victims[0]])) for t in rounds]
    if any(row is None for row in scores):
        return {}
    found = unmix(np.stack([row for row in scores if row is not None]), took_part)
    apart = {name: row for name, row in zip(clients, found, strict=True) if name in victims}
    return {"presence_direct_summed": labels.presence(apart, counts)}


# --- samples ----------------------------------------------------------------------------------------------------------


def _of_samples(
    run: Run, messages: Sequence[Message], attacker: _Attacker, victims: Sequence[str], seed: int
) -> dict[str, float]:
    """Membership and class means, client by client."""
    of: dict[str, list[tuple[Array, Array]]] = {}
    decoded: dict[str, list[tuple[float, float]]] = {}
    for name in victims:
        mine = [m for m in messages if m.client == name]
        client = run.federation[name]
        inside, outside = (client.x_train, client.y_train), (client.x_test, client.y_test)
        for key, calibrated in (("loss", True), ("yeom", False)):
            falls = [attacker.losses(mine, *samples, calibrated) for samples in (inside, outside)]
            of.setdefault(key, []).append((falls[0], falls[1]))
        last = next(iter(mine[-1:]), None)
        means = None if last is None or isinstance(client.x_train, dict) else membership.class_means(last)
        if last is None or means is None or len(means[0]) != run.federation.n_classes:
            continue
        theirs = {**attacker.own, **attacker.kept[name], **last.received, **last.sent}
        for suffix, params in (("", {**attacker.own, **last.received, **last.sent}), ("_embedding", theirs)):
            view = _View(attacker, params, run.federation.n_classes)
            m = view.rows(means[0].numpy(), means[1])
            of.setdefault(f"means{suffix}", []).append((view.score(*inside, m), view.score(*outside, m)))
            if means[1] and suffix:
                anchors = last.received["anchor.mean"].double().numpy()
                near = view.nearness(*inside, anchors), view.nearness(*outside, anchors)
                of.setdefault("near_anchor_embedding", []).append(near)
            if (hit := view.decoded(m, client)) is not None:
                decoded.setdefault(suffix, []).append(hit)
    found: dict[str, float] = {}
    for key, every in of.items():
        pairs = [pair for pair in every if len(pair[0]) and len(pair[1])]
        if not pairs:
            continue
        each = [auc(*pair) for pair in pairs]
        low, high = bootstrap_interval(each, seed)
        found |= {key: float(np.nanmean(each)), f"{key}_low": low, f"{key}_high": high}
        found[f"{key}_caught"] = float(np.nanmean([caught(*pair) for pair in pairs]))
    for suffix, hits in decoded.items():
        found[f"cosine{suffix}"], found[f"error{suffix}"] = (float(v) for v in np.mean(hits, 0))
    return found


class _View:
    """The attacker's samples in an embedding: class means, covariance, decoder."""

    def __init__(self, attacker: _Attacker, params: Params, n_classes: int) -> None:
        self.attacker, self.params = attacker, params
        x, y = attacker.client.x_train, attacker.client.y_train.numpy()
        self.z = attacker.embed(params, x)
        self.population, self.covariance = membership.within_classes(self.z, y, n_classes)
        self.x = x.flatten(1).double().numpy()
        self.inputs, _ = membership.within_classes(self.x, y, n_classes)
        self.known = np.bincount(y, minlength=n_classes) > 0

    def rows(self, means: Array, moves: bool) -> Array:
        """What was sent as class means here; a move is taken as the way from the population's."""
        means = np.nan_to_num(means)
        if moves:
            means = np.where(means.any(1, keepdims=True), self.population + means, 0.0)
        return np.where(self.known[:, None], means, 0.0)

    def score(self, x: Tensor, y: Tensor, means: Array) -> Array:
        z = self.attacker.embed(self.params, x)
        return membership.mean_scores(z, y.numpy(), means, self.population, self.covariance)

    def nearness(self, x: Tensor, y: Tensor, anchors: Array) -> Array:
        z = self.attacker.embed(self.params, x)
        return -np.linalg.norm(z - anchors[y.numpy()], axis=1)

    def decoded(self, means: Array, client: Client) -> tuple[float, float] | None:
        """Cosine and error of the client's class means of inputs, of the classes that it holds and the attacker has."""
        y = client.y_train.numpy()
        held = (np.bincount(y, minlength=len(means)) > 0) & means.any(1)
        if not held.any():
            return None
        truth, _ = membership.within_classes(client.x_train.flatten(1).double().numpy(), y, len(means))
        if truth.shape[1] != self.x.shape[1]:
            return None
        guess = inversion.decode(means, self.population, self.inputs, inversion.decoder(self.z, self.x))
        return inversion.agreement(guess[held], truth[held], self.inputs[held])
