"""What older records call otherwise: one step a format, applied when a record is read, and kept when it is packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetfl_core.errors import WrongValue


@dataclass(frozen=True)
class Renaming:
    """The names that a format changed, each mapping from the old name to the new one.

    Parameters
    ----------
    keys : mapping of str to str
        Keys of ``settings`` and ``federation``, at any depth: ``{"optimiser": "optimizer"}``; those of one class alone
        after its old name and a dot: ``{"FLIC.lambda1": "mu"}``.
    values : mapping of str to mapping
        What stands under such a key, by its old name, which for the names of classes is ``"class"``:
        ``{"class": {"FLIC": "Flic"}, "optimiser": {"sgd": "SGD"}}``.
    columns : mapping of str to str
        Metrics, and columns of ``history`` and ``per_client``.
    history : mapping of str to str
        Columns of ``history`` alone, before those of `columns`.
    """

    keys: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    history: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """The content of a record's file with the new names.

        Raises
        ------
        ValueError
            If one table has both the old name and the new one.
        """
        deep = {name: self._settings(content[name]) for name in ("settings", "federation") if name in content}
        flat = {
            name: self._columns(content[name], self.history if name == "history" else {})
            for name in ("metrics", "history", "per_client")
            if name in content
        }
        return {**content, **deep, **flat}

    def _settings(self, x: Any) -> Any:
        if isinstance(x, list):
            return [self._settings(v) for v in x]
        if not isinstance(x, dict):
            return x
        kind = x.get("class")
        names = {key: self.keys.get(f"{kind}.{key}", self.keys.get(key, key)) for key in x}
        return _renamed({key: self.value(key, value) for key, value in x.items()}, names)

    def value(self, key: str, value: Any) -> Any:
        """What stands under an old key, by its new name."""
        known = self.values.get(key, {})
        return known.get(value, value) if isinstance(value, str | int | float) else self._settings(value)

    def _columns(self, table: Any, own: Mapping[str, str]) -> Any:
        names: Mapping[Any, str] = {**self.columns, **own}
        return _renamed(table, {key: names.get(key, key) for key in table}) if isinstance(table, dict) else table


def _renamed(table: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    found = {names[key]: value for key, value in table.items()}
    if len(found) < len(table):
        raise WrongValue(f"an old name and its new one stand side by side among {sorted(table)}")
    return found


RENAMED: Sequence[Renaming] = (
    Renaming(
        keys={
            "optimiser": "optimizer",
            "tuning_epochs": "finetune_epochs",
            "first_weights": "init",
            "lambda1": "alignment_weight",
            "lambda2": "anchor_weight",
            "lam1": "head_weight",
            "lam2": "mean_weight",
            "mu_extractors": "extractor_weight",
            "mu_classifier": "classifier_weight",
            "Ditto.lam": "term_weight",
            "FedPAC.lam": "term_weight",
            "FedProx.mu": "term_weight",
            "FedHeNN.eta": "term_weight",
            "FedCR.beta": "term_weight",
            "GuardedFedCR.beta": "term_weight",
            "FedSR.l2": "norm_weight",
            "FedSR.cmi": "cmi_weight",
            "FedGen.classifies": "generated_weight",
            "FedGen.agrees": "agreement_weight",
            "FedGen.fades": "term_decay",
            "FedGen.generated": "n_generated",
            "FedGen.diverse": "diversity_weight",
        }
    ),
    Renaming(
        columns={
            "test_accuracy": "accuracy",
            "own_test_accuracy": "own_accuracy",
            "server_test_accuracy": "server_accuracy",
            "held_test_accuracy": "held_accuracy",
            "own_held_test_accuracy": "own_held_accuracy",
            "accuracy_held": "held_accuracy",
            "accuracy_limit": "attainable_accuracy",
            "test_mse": "mse",
            "own_test_mse": "own_mse",
            "server_test_mse": "server_mse",
        },
        history={"mse": "se"},
    ),
    Renaming(
        keys={
            "aggregates": "aggregated",
            "aligns": "alignment",
            "aligns_from": "alignment_from",
            "answering": "surveyed",
            "begins": "client_init",
            "combines": "combine_heads",
            "norms": "penalty",
            "resets": "reset",
            "sends": "uploads",
            "towards": "target",
            "FedCMA.first": "server_init",
            "GuardedFedCMA.first": "server_init",
            "FedCMA.fixed": "samples_per_class",
            "GuardedFedCMA.fixed": "samples_per_class",
            "FedSR.shares": "federated",
            "HyFEM.most": "max_width",
        },
        values={"norms": {False: "square", True: "norm"}},
    ),
)
"""The steps from format 1 to 2, from 2 to 3 …: one more at the end makes a new format, which `hetfl pack` writes."""


def setting(kind: type, name: str, value: Any) -> tuple[str, Any]:
    """The present name and value of a class's setting that is given by an old name.

    Parameters
    ----------
    kind : type
        The class, such as a method's.
    name : str
        Of the setting, old or new.
    value : object
        Its value, as it was called when the setting had that name.

    Returns
    -------
    tuple of str and object
    """
    for step in RENAMED:
        value = step.value(name, value)
        own = [step.keys[f"{each.__name__}.{name}"] for each in kind.__mro__ if f"{each.__name__}.{name}" in step.keys]
        name = own[0] if own else step.keys.get(name, name)
    return name, value


def translated(content: Mapping[str, Any]) -> dict[str, Any]:
    """A record's content in the names of the newest format.

    Content of any format so far is translated, that of another one left as it is.

    Parameters
    ----------
    content : dict

    Returns
    -------
    dict
        A new one.
    """
    old = content.get("format")
    steps = RENAMED[old - 1 :] if type(old) is int and 1 <= old <= len(RENAMED) else ()
    for step in steps:
        content = step(content)
    return {**content, "format": len(RENAMED) + 1} if steps else dict(content)
