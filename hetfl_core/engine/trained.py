"""Models that are used: they predict for new rows, are written to a folder, and come back from it.

A folder holds ``model.json``: names of features and classes, settings and versions, and of the data what the server is
told of clients (`Spec`), no row of them. What was learnt stands beside it: parameters of networks in
``tensors.safetensors``, and fitted estimators in ``estimators.skops``, which no pickle reads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from hetfl_core import checks, scikit
from hetfl_core.clients import by_block, warn
from hetfl_core.engine.checkpoint import method_settings
from hetfl_core.engine.predictor import Answering, Answers, Predictor, TrainedEstimator, TrainedNetwork
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Spec, blocks, map_blocks
from hetfl_core.files import write_atomically
from hetfl_core.methods.base import Method
from hetfl_core.networks import Params
from hetfl_core.numerics import versions
from hetfl_core.preparation import restored
from hetfl_core.rng import SERVER
from hetfl_core.settings import Checked, changed, plain

FORMATS = (1, 2)
"""Of folders of networks, and of estimators."""

ABOUT, TENSORS, ESTIMATORS = "model.json", "tensors.safetensors", "estimators.skops"


@dataclass(frozen=True, eq=False)
class Trained:
    """The models of a run without its data: what `Run.trained` and `hetfl_core.load_trained` give.

    Parameters
    ----------
    method : Method
    settings : dict
        What the run was told, as `Run.settings`.
    name : str
        Of the federation.
    info : dict
        Facts of the federation; ``"classes"`` has what its classes are called. Only these are saved.
    specs : list of Spec
        What is known of each client.
    params : list of dict of str to Tensor
        Each client's parameters.
    server_tensors : dict of str to Tensor
        What the server holds.
    dtype : torch.dtype
    steps : list of dict of str to Tensor
        The last step of each client, where the run had ``last_step="own"``.
    prepares : list
        What makes inputs of rows of each client's table, by its ``transform``; None where there is none.
    """

    method: Method
    settings: dict[str, Any]
    name: str
    info: dict[str, Any]
    specs: list[Spec]
    params: list[Params]
    server_tensors: Params
    dtype: torch.dtype
    steps: list[Params] = field(default_factory=list)
    prepares: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, run: Any) -> Trained:
        """The models of a run; see `Run.trained`."""
        if not any(run.params):
            raise WrongValue(f"{run.method.name} keeps no model that could be used")
        fed, specs = run.federation, run.federation.specs()
        params = []
        for spec, mine in zip(specs, run.params, strict=True):
            kept = {**run.method.of(spec).init_client(spec, torch.Generator()), **run.method.download(run.server, spec)}
            params.append({name: p.detach().cpu() for name, p in mine.items() if name in kept})
        server = {name: p.detach().cpu() for name, p in run.server.items()}
        steps, prepares = list(run.steps), [client.prepare for client in fed]
        dtype = blocks(fed[0].x_train)[0].dtype
        return cls(run.method, run.settings, fed.name, fed.info, specs, params, server, dtype, steps, prepares)

    # --- use ---

    @property
    def clients(self) -> list[str]:
        """Names of the clients that have a model."""
        return [spec.name for spec in self.specs]

    @property
    def classes(self) -> list[Any]:
        """What the classes are called, in the order of their numbers; empty for a regression."""
        return list(self.info.get("classes", range(self.specs[0].n_classes)))

    @property
    def server(self) -> Predictor:
        """The server's own model, which takes rows that have all features.

        Raises
        ------
        ValueError
            Where the method leaves none at the server, and where each client's table was prepared by its own rows.
        """
        if any(prepare is not None for prepare in self.prepares):
            raise WrongValue(
                "the server cannot prepare rows: each client's table was scaled and filled by its own rows; predict "
                f"for one of {self.clients}"
            )
        first = self.specs[0]
        features, shapes = dict[str, Any](), dict[str, tuple[int, ...]]()
        for spec in self.specs:
            for block, shape in by_block(spec.shapes).items():
                if block not in shapes or (0 in shapes[block] and 0 not in shape):
                    shapes[block], features[block] = shape, by_block(spec.features)[block]
        alone = not isinstance(first.shapes, Mapping)
        whole = replace(
            first,
            name=SERVER,
            shapes=shapes[""] if alone else shapes,
            features=features[""] if alone else features,
            n_train=0,
            class_counts=(0,) * first.n_classes,
        )

        model = TrainedNetwork(whole, self.method.of(whole), self.server_tensors, {}, of_server=True)
        found = Predictor("the server", whole, model, self.classes, self.dtype)
        if found.outputs(self._ones(whole)) is None:
            raise WrongValue(f"{self.method.name} leaves no model at the server; predict for one of {self.clients}")
        return found

    def client(self, name: str | None = None) -> Predictor:
        """The model of one client.

        Parameters
        ----------
        name : str, optional
            Of the client; it can be left out where there is only one.

        Returns
        -------
        Predictor

        Raises
        ------
        ValueError
            For a client that has no model.
        """
        if name is None and len(self.specs) == 1:
            name = self.clients[0]
        if not isinstance(name, str) or name not in self.clients:
            raise WrongValue(f"client must be one of {checks.shown(self.clients)}, got {checks.shown(name)}")
        index = self.clients.index(name)
        prepare = self.prepares[index] if self.prepares else None
        return Predictor(f"client {name!r}", self.specs[index], self._model(index), self.classes, self.dtype, prepare)

    def _model(self, index: int) -> Answering:
        """What answers for the client of this number."""
        spec = self.specs[index]
        received, step = self.method.download(self.server_tensors, spec), self.steps[index : index + 1]
        return TrainedNetwork(spec, self.method.of(spec), self.params[index], received, step)

    def predict(self, rows: Any, client: str | None = None) -> pd.Series:
        """Classes, or numbers, that a client's model predicts; see `Predictor.predict`."""
        return self.client(client).predict(rows)

    def predict_proba(self, rows: Any, client: str | None = None) -> pd.DataFrame:
        """Class probabilities of a client's model as a table; see `Predictor.probabilities`."""
        return self.client(client).probabilities(rows)

    def __repr__(self) -> str:
        return f"Trained({self.method.name} on {self.name!r}: {checks.shown(self.clients)})"

    # --- files ---

    def save(self, folder: str | Path) -> Path:
        """Write the models to a folder; `hetfl_core.load_trained` reads them.

        No row of anybody's data is written with a network, but what was fitted to clients' tables is: medians, means,
        spreads, and the levels of words. Of a client with few rows they say much. Estimators are written as they are,
        and some consist of training rows.

        Parameters
        ----------
        folder : path
            Made if it is missing; models that it holds are replaced.

        Returns
        -------
        pathlib.Path
            The folder.

        Raises
        ------
        OSError
            If the disk refuses, naming the file.
        TypeError
            For what JSON cannot hold: classes that are neither numbers nor texts. For an estimator, or a transformer
            of one's own (``prepare``), that only pickle could write, such as one that holds a lambda.

        Warns
        -----
        FederationWarning
            For estimators that consist of training rows, as support vector machines and nearest neighbours do.
        """
        root = checks.path("folder", folder)
        own, name, learnt = self._packed()
        about = {
            "versions": versions("hetfl-core", "torch", "numpy", "scikit-learn", "skops"),
            "settings": {key: value for key, value in plain(self.settings, "settings").items() if key != "method"},
            "name": self.name,
            "classes": plain(self.classes, "classes"),
            "clients": [plain(vars(spec), "clients") for spec in self.specs],
            "dtype": str(self.dtype),
            "prepare": [None if prepare is None else prepare.state() for prepare in self.prepares],
            "probe": self._probe(),
            **own,
            Path(name).stem: hashlib.sha256(learnt).hexdigest(),
        }
        write_atomically(root / name, learnt)
        write_atomically(root / ABOUT, json.dumps(about | {"seal": _seal(about)}, indent=1).encode())
        for other in {TENSORS, ESTIMATORS} - {name}:
            (root / other).unlink(missing_ok=True)
        return root

    def _packed(self) -> tuple[dict[str, Any], str, bytes]:
        """What is said of what was learnt, the name of its file, and what stands there."""
        tensors = {f"server/{name}": p for name, p in self.server_tensors.items()}
        names, steps = [], self.steps or [{} for _ in self.specs]
        for index, (spec, params, step) in enumerate(zip(self.specs, self.params, steps, strict=True)):
            sent = self.method.download(self.server_tensors, spec)
            own = {name: p for name, p in params.items() if name not in sent or not torch.equal(p, sent[name].cpu())}
            tensors |= {f"client/{index}/{name}": p for name, p in own.items()}
            tensors |= {f"step/{index}/{name}": p for name, p in step.items()}
            names.append(list(params))
        method = method_settings(self.method, self.specs)
        words = {"format": 1, "method": method, "made_of_settings": _same(method, self.method)}
        words |= {"params": names, "server": list(self.server_tensors)}
        return words, TENSORS, save_tensors({name: p.clone().contiguous() for name, p in tensors.items()})

    def _probe(self) -> list[list[float]]:
        """What each model says of a sample of ones, by which a version that computes something else is known."""
        return [self.client(spec.name).outputs(self._ones(spec))[0].tolist() for spec in self.specs]

    def _ones(self, spec: Spec) -> Any:
        return map_blocks(lambda shape: torch.ones(1, *shape, dtype=self.dtype), spec.shapes)


@dataclass(frozen=True, eq=False, repr=False)
class TrainedEstimators(Trained):
    """The fitted estimators of a run of a baseline, without its data; see `Trained`.

    Parameters
    ----------
    answers : list of Answers
        Of each client; one object may answer for several.
    """

    answers: list[Answers] = field(default_factory=list)

    @classmethod
    def of_fitted(cls, run: Any, answers: list[Answers]) -> TrainedEstimators:
        """What a run of a baseline has fitted, of each client in the order of its federation."""
        fed = run.federation
        prepares, dtype = [client.prepare for client in fed], blocks(fed[0].x_train)[0].dtype
        known = run.method, run.settings, fed.name, fed.info, fed.specs()
        return cls(*known, params=[], server_tensors={}, dtype=dtype, prepares=prepares, answers=answers)

    @property
    def server(self) -> Predictor:
        """There is none: each client has its estimator, or a copy of the one that was fitted in one place.

        Raises
        ------
        ValueError
        """
        raise WrongValue(f"{self.method.name} leaves no model at a server; predict for one of {self.clients}")

    def _model(self, index: int) -> Answering:
        return TrainedEstimator(self.specs[index], self.answers[index], self.method.name)

    def _packed(self) -> tuple[dict[str, Any], str, bytes]:
        if holders := [n for n, a in zip(self.clients, self.answers, strict=True) if scikit.holds_rows(a.model)]:
            warn(
                f"{self.method.name} consists of training rows, of {checks.shown(holders)}, and the folder has them: "
                "whoever gets it can read them"
            )
        unlike = list({id(answers): answers for answers in self.answers}.values())
        places = {id(answers): place for place, answers in enumerate(unlike)}
        learnt = scikit.packed({"baseline": self.method, "answers": unlike}, f"what {self.method.name} has fitted")
        method = plain(self.method, "method", other=lambda thing: type(thing).__name__)
        return {"format": 2, "method": method, "of": [places[id(a)] for a in self.answers]}, ESTIMATORS, learnt


# --- what comes back ------------------------------------------------------------------------------------------------


def load_trained(folder: str | Path, *, method: Method | None = None, trusted: Sequence[str] = ()) -> Trained:
    """Models that `Run.save` or `Trained.save` wrote.

    Parameters
    ----------
    folder : path
    method : Method, optional
        The method, where it or its network is not of this library: a file does not say what code to run.
    trusted : sequence of str
        Full names of classes and functions, neither of this library nor of scikit-learn, that a fitted estimator or a
        transformer (``prepare``) consists of. Reading runs their code. What a file asks for is told where it is not
        given here.

    Returns
    -------
    Trained

    Raises
    ------
    FileNotFoundError
        Naming a file that is not there.
    ValueError
        Naming the file: that was changed or damaged, that another version wrote in another format, whose models this
        version, or `method`, does not make or does not compute, or that asks for code which is not trusted.
    """
    root = checks.path("folder", folder)
    trusted = checks.names("trusted", trusted)
    if method is not None:
        checks.instance("method", method, Method, such_as="FLIC()")
    about = _read(root / ABOUT)
    path = root / (TENSORS if about["format"] == 1 else ESTIMATORS)
    learnt = _bytes(path)
    if hashlib.sha256(learnt).hexdigest() != about.get(path.stem):
        raise WrongValue(f"{path} is not the file that {ABOUT} was written with: it was changed or damaged")
    by = f"{root / ABOUT}, written by hetfl-core {about['versions']['hetfl-core']},"
    try:
        specs = [_spec(told) for told in about["clients"]]
        common = {
            "name": about["name"],
            "info": {"classes": about["classes"]} if specs[0].task == "classification" else {},
            "specs": specs,
            "dtype": getattr(torch, about["dtype"].removeprefix("torch.")),
            "prepares": [None if state is None else restored(state, by, trusted) for state in about["prepare"]],
            "settings": about["settings"] | {"method": about["method"]},
        }
        if path.name == TENSORS:
            trained = _networks(about, learnt, common, method, path, by)
        elif method is None:
            trained = _estimators(about, learnt, common, trusted, path, by)
        else:
            raise WrongValue(f"{by} holds fitted estimators, for which no method is needed: leave method out")
        _check(trained, about["probe"], by)
    except (KeyError, IndexError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        if by in str(error) or str(path) in str(error):
            raise
        raise WrongValue(f"{by} holds what this version cannot read ({type(error).__name__}: {error})") from error
    return trained


def _networks(
    about: Mapping[str, Any], learnt: bytes, common: Mapping[str, Any], method: Method | None, path: Path, by: str
) -> Trained:
    """The networks of a file's words and tensors."""
    try:
        tensors = {name: p.clone() for name, p in load_tensors(learnt).items()}
    except SafetensorError as error:
        raise WrongValue(f"{path} is damaged: {error}") from error
    server = {name: tensors[f"server/{name}"] for name in about["server"]}
    made = _method(about, common["specs"], method, by)
    params, steps = [], []
    for index, (spec, names) in enumerate(zip(common["specs"], about["params"], strict=True)):
        own = {**made.download(server, spec), **dict(_under(tensors, f"client/{index}/"))}
        params.append({name: own[name] for name in names})
        steps.append(dict(_under(tensors, f"step/{index}/")))
    own_steps = steps if any(steps) else []
    return Trained(method=made, params=params, server_tensors=server, steps=own_steps, **common)


def _estimators(
    about: Mapping[str, Any], learnt: bytes, common: Mapping[str, Any], trusted: Sequence[str], path: Path, by: str
) -> Trained:
    """The estimators of a file."""
    held = scikit.unpacked(learnt, str(path), trusted)
    answers = [held["answers"][place] for place in about["of"]]
    if len(answers) != len(common["specs"]):
        raise WrongValue(f"{by} has estimators for {len(answers)} of its {len(common['specs'])} clients")
    return TrainedEstimators(method=held["baseline"], params=[], server_tensors={}, answers=answers, **common)


def _bytes(path: Path) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no {path}; a folder that Run.save wrote holds {ABOUT}, and {TENSORS} or {ESTIMATORS}"
        )
    return path.read_bytes()


def _read(path: Path) -> dict[str, Any]:
    """What ``model.json`` says, as it was written in this format."""
    try:
        about = json.loads(_bytes(path))
        number, seal = about["format"], about.pop("seal")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WrongValue(f"{path} is damaged, or was not written by Run.save: {error}") from error
    if number not in FORMATS or isinstance(number, bool):
        by = about.get("versions", {}).get("hetfl-core", "an unknown version")
        raise WrongValue(f"{path} has format {number!r}, of hetfl-core {by}; this version reads formats {FORMATS}")
    if _seal(about) != seal:
        raise WrongValue(f"{path} was changed since it was written")
    return about


def _seal(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _under(tensors: Mapping[str, Tensor], prefix: str) -> Iterator[tuple[str, Tensor]]:
    return ((name.removeprefix(prefix), p) for name, p in tensors.items() if name.startswith(prefix))


def _spec(told: Mapping[str, Any]) -> Spec:
    shapes = map_blocks(tuple, told["shapes"])
    features = map_blocks(lambda names: names if names is None else tuple(names), told["features"])
    return Spec(**{**told, "shapes": shapes, "features": features, "class_counts": tuple(told["class_counts"])})


# --- methods of what is written of them -----------------------------------------------------------------------------


def _classes(base: Any = Checked) -> dict[str, Any]:
    """The settings of this library by their name."""
    found: dict[str, Any] = {}
    for each in base.__subclasses__():
        own = {each.__name__: each} if each.__module__.startswith("hetfl_core.") else {}
        found |= _classes(each) | own
    return found


def built(told: Any) -> Any:
    """The settings that were written down (`hetfl_core.settings.plain`), made again of the classes of this library.

    Parameters
    ----------
    told : object

    Returns
    -------
    object

    Raises
    ------
    KeyError, TypeError, ValueError
        For a class, or a field, that there is not.
    """
    if isinstance(told, Mapping) and "class" in told:
        return _classes()[told["class"]](**{name: built(value) for name, value in told.items() if name != "class"})
    if isinstance(told, Mapping):
        return {name: built(value) for name, value in told.items()}
    return tuple(map(built, told)) if isinstance(told, list) else told


def _same(told: Any, method: Method) -> bool:
    """Whether what is written of a method makes it again."""
    try:
        made = built(told)
        return type(made) is type(method) and all(
            getattr(made, f.name) == getattr(method, f.name) for f in fields(made)
        )
    except (KeyError, TypeError, ValueError, RuntimeError):
        return False


def _method(about: Mapping[str, Any], specs: Sequence[Spec], given: Method | None, by: str) -> Method:
    """The method of a file: made of its settings, or the one that is given, if it is the same."""
    told = about["method"]
    if given is None:
        if not about["made_of_settings"]:
            raise WrongValue(
                f"{by} has a method or network that is not of this library: load_trained(folder, method=…) takes it"
            )
        try:
            return built(told)
        except (KeyError, TypeError, ValueError) as error:
            raise WrongValue(f"{by} has a method {told['class']!r} that this version does not make: {error}") from error
    if differing := changed(told, json.loads(json.dumps(method_settings(given, specs)))):
        raise WrongValue(f"{by} has another method (there → given):\n  " + "\n  ".join(differing))
    return given


def _check(found: Trained, probe: Sequence[Sequence[float]], by: str) -> None:
    """Refuse models whose tensors have other shapes than this version makes, or that say something else."""
    if found.specs[0].task == "classification" and len(found.classes) != found.specs[0].n_classes:
        raise WrongValue(f"{by} has {len(found.classes)} classes, where its models have {found.specs[0].n_classes}")
    for spec in found.specs:
        for block, names in by_block(spec.features).items():
            if names is not None and (shape := by_block(spec.shapes)[block])[:1] != (len(names),):
                raise WrongValue(f"{by} has {len(names)} features of client {spec.name!r}, whose inputs are {shape}")
    for spec, params in zip(found.specs, found.params, strict=bool(found.params)):
        model = found.method.of(spec).model
        for name, p in model.init(spec, torch.Generator(), model.parts).items():
            if name in params and params[name].shape != p.shape:
                shapes = f"{tuple(params[name].shape)}, where this version makes {tuple(p.shape)}"
                raise WrongValue(f"{by} has {name!r} of client {spec.name!r} with shape {shapes}")
    for name, said, wanted in zip(found.clients, found._probe(), probe, strict=True):
        if not np.allclose(said, wanted, rtol=1e-3, atol=1e-3, equal_nan=True):
            raise WrongValue(f"{by} has a model of client {name!r} that says something else in this version")
