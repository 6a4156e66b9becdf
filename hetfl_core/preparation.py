"""From a client's table to its inputs: gaps filled, words encoded, numbers scaled, as its own training rows say.

`Preparation` says how; scikit-learn's parts do it. What was fitted, `Prepared`, stays with the client for later rows.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from hetfl_core import checks, columns, scikit
from hetfl_core.clients import warn
from hetfl_core.columns import word
from hetfl_core.errors import WrongType, WrongValue
from hetfl_core.settings import Checked, Natural, Share, plain

__all__ = ["Preparation"]

Gaps = Literal["median", "most_frequent", "indicator", "refuse"]

MARKS = (str, int, float, np.number, np.bool_, type(None))
"""Types of what can stand for a missing value."""


@dataclass(frozen=True)
class Preparation(Checked):
    """How the columns of a table become inputs; see `Federation.from_frame`.

    Everything is fitted on a client's own training rows. Two things are not: which columns a client has (`absent`) is
    decided over all its rows, so that it does not change from split to split, and whether a column holds numbers or
    words is read off the whole table. With ``levels="all"`` the clients tell each other which words they have.

    Parameters
    ----------
    gaps : {"median", "most_frequent", "indicator", "refuse"}
        What stands where a number is missing: the median, or the most frequent one. A missing word is the most frequent
        one in any case. ``"indicator"`` fills in as ``"median"`` does, and adds for each column of the client one that
        is 1 where it was missing, ``"<column> missing"``.
    categories : dict of str to sequence, or sequence of str, optional
        Columns whose values are categories, such as codes, and, in a dict, the levels that they can have. Columns of
        words are categories in any case. A category becomes a column per level, ``"<column>=<level>"``, 0 or 1.
    levels : {"all", "own"}
        Of a category whose levels are not given: those in the training rows of all clients, or of each client alone.
        A level that is in none of them is encoded as zeros.
    scale : bool
        Whether numbers get mean 0 and standard deviation 1.
    absent : float
        A column of which a client lacks more than this share of its values is one that it does not have, in [0, 1].
    rare : int
        A level that fewer training rows than this have is ``"other"``, and so is one that comes later: what is fitted,
        saved and told to other sites then names no level of one patient or two. A client's own rows are counted. 0
        leaves all levels as they are. Levels that are given are not touched.
    missing : sequence, or dict of str to sequence
        What stands for a missing value in all columns, or in these columns, such as ``{"chol": [0]}``. Numbers are
        compared as numbers, whether they are written as such or as texts: 0 is also "0", " 0.0 " or "0,0", but not
        False. Blank texts, "?", "nan", "NaN", "NA" and "N/A" do in any case.
    """

    gaps: Gaps = "median"
    categories: Any = ()
    levels: Literal["all", "own"] = "all"
    scale: bool = True
    absent: Share = 0.6
    missing: Any = ()
    rare: Natural = 0

    def __post_init__(self) -> None:
        for name in ("categories", "missing"):
            value = getattr(self, name)
            for key, inside in value.items() if isinstance(value, Mapping) else [(None, value)]:
                given = checks.sequence(where := name if key is None else f"{name}[{key!r}]", inside)
                if name == "missing" and (odd := [mark for mark in given if not isinstance(mark, MARKS)]):
                    raise WrongType(f"{where} must be numbers and texts, got {checks.shown(odd[0])}")
        if not isinstance(self.categories, Mapping):
            checks.names("categories", self.categories)
        for column, levels in self.declared.items():
            if not levels or len(set(levels)) < len(levels):
                raise WrongValue(f"categories[{column!r}] must be different levels, got {checks.shown(levels)}")

    @property
    def declared(self) -> dict[str, tuple[str, ...]]:
        """The levels that are given, as texts, of each column of which they are."""
        given = self.categories if isinstance(self.categories, Mapping) else {}
        return {str(column): tuple(map(word, levels)) for column, levels in given.items()}

    @property
    def coded(self) -> list[str]:
        """The columns that `categories` names."""
        return [*map(str, self.categories)]

    @property
    def named(self) -> list[str]:
        """The columns that `categories` and `missing` name."""
        return [*dict.fromkeys([*self.coded, *map(str, self.missing if isinstance(self.missing, Mapping) else ())])]

    def check_named(self, columns: Any) -> None:
        """Refuse names in `categories` and `missing` that are none of these columns."""
        known = [*map(str, columns)]
        if lost := [column for column in self.named if column not in known]:
            argument = "categories" if lost[0] in self.coded else "missing"
            raise WrongValue(f"{argument} must name columns of {[*columns]}, got {lost[0]!r}")

    def marks(self, column: str) -> list[Any]:
        """What stands for a missing value in a column."""
        by_name = (
            {str(name): marks for name, marks in self.missing.items()} if isinstance(self.missing, Mapping) else {}
        )
        given = by_name.get(column, ()) if isinstance(self.missing, Mapping) else self.missing
        return [*given, "?", "", "nan", "NaN", "NA", "N/A"]

    def cleaned(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The columns of a table as numbers (float64), or as words (object), with NaN where they have gaps.

        Parameters
        ----------
        frame : pandas.DataFrame
            Features only.

        Returns
        -------
        pandas.DataFrame

        Raises
        ------
        ValueError
            Naming the column, for dates, for infinite numbers, for numbers among words, for texts that identify rows,
            and for levels that are not among those that were given.
        """
        self.check_named(frame.columns)
        made = {str(c): self._column(str(c), frame[c]) for c in frame.columns}
        return pd.DataFrame(made, index=frame.index)

    def _column(self, column: str, values: pd.Series) -> pd.Series:
        codes = column in self.coded
        values = _without_marks(column, values, self.marks(column), codes)
        if codes:
            words = _words(values)
            if unknown := sorted({*words.dropna()} - {*self.declared.get(column, words.dropna())}):
                raise WrongValue(
                    f"column {column!r} must have levels among {[*self.declared[column]]}, as categories says, got "
                    f"{checks.shown(unknown)}"
                )
            return words
        numbers = _numbers(column, values)
        failed = values[numbers.isna() & values.notna()]
        if failed.empty:
            return numbers
        if all(map(GROUPED.fullmatch, map(str, failed.unique()))):
            raise WrongValue(f"column {column!r} {_in_groups(failed)}")
        if numbers.notna().any():
            raise WrongValue(
                f"column {column!r} must hold numbers or words, got numbers and, in {len(failed)} rows, "
                f"{checks.shown([*failed.astype(str).unique()])}: name what stands for a missing value in missing=…, "
                "or the column in categories=… if these are levels"
            )
        words = _words(values)
        n = words.nunique()
        measured = words.dropna().str.extract(MEASURED)["unit"]
        if n > 10 and measured.notna().all() and measured.nunique() <= 3:
            raise WrongValue(
                f"column {column!r} has numbers with a unit, such as {words.dropna().iloc[0]!r}: write the numbers "
                "alone, or name the column in categories=… if these are levels"
            )
        if n > 10 and n > words.notna().sum() / 2:
            raise WrongValue(
                f"column {column!r} has {n} different texts in {words.notna().sum()} rows, as names and notes do: "
                "leave it out (ignore=…), or name it in categories=…"
            )
        return words


@dataclass(frozen=True, eq=False)
class Prepared:
    """A preparation as it was fitted on the training rows of one client.

    Parameters
    ----------
    client : str
    columns : tuple of str
        Of a table, that are needed.
    features : tuple of str or None
        Names of what is made of them.
    origin : tuple of str
        Of each feature the column that it is made of.
    transformer : object
        Fitted.
    preparation : Preparation or None
        None for a transformer of the user's own.
    levels : dict of str to tuple of str
        Of each column that is a category.
    offered : tuple of str
        All columns of the table of a site of its own, in their order, with those that the client does not have.
    """

    client: str
    columns: tuple[str, ...]
    features: tuple[str, ...] | None
    origin: tuple[str, ...]
    transformer: Any
    preparation: Preparation | None = None
    levels: Any = None
    offered: tuple[str, ...] = ()

    def transform(self, frame: pd.DataFrame, wanted: Sequence[str] | None = None, *, new: bool = True) -> pd.DataFrame:
        """Rows of a table as inputs.

        Parameters
        ----------
        frame : pandas.DataFrame
            With the columns that the client has, in any order; others do not matter.
        wanted : sequence of str, optional
            Features that are asked for. Columns of which none is made need not be there.
        new : bool
            Whether to look if the rows can be of the same kind as the training rows.

        Returns
        -------
        pandas.DataFrame, shape (n, n_features)
            A column per feature, float64.

        Raises
        ------
        ValueError
            Naming client and column: for one that is not there, is there twice, or holds words where numbers are
            expected.

        Warns
        -----
        FederationWarning
            For levels of a category that the preparation does not know, which become zeros; for rows without any value;
            and for numbers beyond ten standard deviations from the mean of the training rows, or, of five rows and
            more, whose median is beyond four: of another unit, perhaps. Mean and deviation are those of the scaling.
        """
        checks.instance("frame", frame, pd.DataFrame)
        table = frame.rename(columns=str)
        known = zip(self.features or (), self.origin, strict=False)
        needed = self.columns if wanted is None or self.preparation is None else {c for f, c in known if f in wanted}
        if lost := [column for column in self.columns if column in needed and column not in table.columns]:
            written = {"".join(str(column).lower().split()): str(column) for column in table.columns}
            near = written.get("".join(lost[0].lower().split()))
            raise WrongValue(
                f"client {self.client!r}: the table must have the columns {checks.shown([*self.columns])}, lacks "
                f"{checks.shown(lost)}; "
                + (f"{near!r} is another name" if near else "where a value is not known, leave it empty")
            )
        if twice := [column for column in self.columns if (table.columns == column).sum() > 1]:
            raise WrongValue(f"client {self.client!r}: the table must have each column once, got {twice[0]!r} twice")
        table = table.reindex(columns=[*self.columns])
        if self.preparation is not None:
            try:
                table = pd.DataFrame({c: self._cleaned(c, table[c]) for c in self.columns}, index=table.index)
            except ValueError as error:
                raise WrongValue(f"client {self.client!r}: {error}") from error
            if self.preparation.gaps == "refuse":
                refuse_gaps(self.client, table[[column for column in self.columns if column in needed]])
            if new and len(table):
                self._warn_of_rows(table)
        return self.inputs(table)

    def inputs(self, table: pd.DataFrame) -> pd.DataFrame:
        """As `transform`, of rows that are cleaned (`Preparation.cleaned`)."""
        table = table[[*self.columns]]
        if self.preparation is not None:
            table = table.assign(**{c: self._known(c, table[c]) for c in self.columns if c in self.levels})
        try:
            made = np.empty((0, len(self.origin))) if table.empty else self.transformer.transform(table)
        except (ValueError, TypeError) as error:
            told = " ".join(str(error).split())
            raise WrongValue(f"client {self.client!r}: prepare cannot take these rows: {told}") from error
        made = made.toarray() if hasattr(made, "toarray") else np.asarray(made)
        if made.ndim != 2 or len(made) != len(table) or made.dtype.kind not in "biuf":
            raise WrongValue(
                f"client {self.client!r}: prepare must make an array of numbers with {len(table)} rows, got shape "
                f"{made.shape} and dtype {made.dtype}"
            )
        return pd.DataFrame(made.astype(float), index=table.index, columns=list(self.features or range(made.shape[1])))

    def _warn_of_rows(self, table: pd.DataFrame) -> None:
        """Warn of rows that are hardly of the same kind as the training rows."""
        if n := int(table.isna().all(axis=1).sum()):
            warn(f"client {self.client!r}: {n} of {len(table)} rows have no value in any column that the model takes")
        for column, (mean, deviation) in self._scales().items():
            away = ((table[column] - mean) / deviation).abs().dropna()
            far = away[away > FAR]
            if len(far) or (len(away) >= 5 and away.median() > SHIFTED):
                worst = table[column][(far if len(far) else away).index[0]]
                warn(
                    f"client {self.client!r}: column {column!r} has values far from those that the model was trained "
                    f"with, {worst:g} where they are {mean:.4g} ± {deviation:.4g}: is it in the same unit?"
                )

    def _scales(self) -> dict[str, tuple[float, float]]:
        """Mean and standard deviation of each column of numbers, where these are scaled."""
        for kind, part, names in self.transformer.transformers_:
            if kind == "numbers" and self.preparation is not None and self.preparation.scale:
                each = zip(part[1].mean_.tolist(), part[1].scale_.tolist(), strict=True)
                return dict(zip(names, each, strict=True))
        return {}

    def _cleaned(self, column: str, values: pd.Series) -> pd.Series:
        assert self.preparation is not None
        codes = column in self.levels
        values = _without_marks(column, values, self.preparation.marks(column), codes)
        if codes:
            return _words(values)
        numbers = _numbers(column, values)
        if len(failed := values[numbers.isna() & values.notna()]):
            raise WrongValue(f"column {column!r} must hold numbers, got {checks.shown(failed.iloc[0])}")
        return numbers

    def _known(self, column: str, words: pd.Series) -> pd.Series:
        assert self.preparation is not None
        words = _lumped(words, self.levels[column], self.preparation)
        if unknown := sorted({*words.dropna()} - {*self.levels[column]}):
            warn(
                f"client {self.client!r}: column {column!r} has levels that its preparation does not know, "
                f"{checks.shown(unknown)}: they count as none of {checks.shown([*self.levels[column]])}"
            )
        return words

    def state(self) -> dict[str, Any]:
        """All that was fitted, as JSON can hold it; `restored` makes the same of it.

        Returns
        -------
        dict
            Names, levels, and per column what fills a gap, mean and scale. Of a transformer of the user's own names,
            and the transformer as skops writes it (`hetfl_core.scikit.packed`), in base 64.

        Raises
        ------
        TypeError
            For a transformer that cannot be written, naming the client.
        """
        own = {"client": self.client, "columns": [*self.columns], "features": [*(self.features or ())]}
        if self.preparation is None:
            content = scikit.packed(self.transformer, f"client {self.client!r}: its transformer (prepare)")
            return {**own, "origin": [*self.origin], "transformer": base64.b64encode(content).decode()}
        parts = self.transformer.named_transformers_
        fills: dict[str, Any] = {}
        for kind, _, names in self.transformer.transformers_:
            if kind not in ("gaps", "remainder"):
                filled = parts[kind][0].statistics_.tolist()
                fills |= dict(zip(names, filled, strict=True))
        scales = {column: list(each) for column, each in self._scales().items()}
        fitted = {"fills": fills, "scales": scales, "levels": {c: [*levels] for c, levels in self.levels.items()}}
        return {**own, **fitted, "preparation": plain(vars(self.preparation))}


def restored(state: Mapping[str, Any], by: str = "prepare", trusted: Sequence[str] = ()) -> Prepared:
    """What `Prepared.state` was written of: it makes the same inputs, bit for bit.

    Parameters
    ----------
    state : dict
    by : str
        Where it stands, for errors.
    trusted : sequence of str
        Classes and functions of others that a transformer consists of, as for `hetfl_core.load_trained`.

    Returns
    -------
    Prepared

    Raises
    ------
    ValueError
        For a transformer that is damaged, or asks for code which is not trusted.
    """
    columns = tuple(state["columns"])
    if "transformer" in state:
        transformer = scikit.unpacked(base64.b64decode(state["transformer"]), by, trusted)
        features = tuple(state["features"]) or None
        return Prepared(state["client"], columns, features, tuple(state["origin"]), transformer)
    preparation = Preparation(**state["preparation"])
    kinds = {c: object if c in state["levels"] else float for c in columns}
    row = pd.DataFrame({c: pd.Series([state["fills"][c]], dtype=kinds[c]) for c in columns})  # its median is itself
    made = fit(state["client"], row, preparation, state["levels"])
    for kind, part, names in made.transformer.transformers_:
        if kind == "numbers" and preparation.scale:
            scaler = part[1]
            scaler.mean_, scaler.scale_ = (np.array([state["scales"][c][i] for c in names]) for i in (0, 1))
            scaler.var_ = scaler.scale_**2
    return made


# --- fitting --------------------------------------------------------------------------------------------------------


def fit(who: str, table: pd.DataFrame, preparation: Preparation, levels: Mapping[str, Sequence[str]]) -> Prepared:
    """Fit a preparation on the training rows of one client.

    Parameters
    ----------
    who : str
    table : pandas.DataFrame
        Cleaned (`Preparation.cleaned`); the columns that the client has.
    preparation : Preparation
    levels : dict of str to sequence of str
        Of the columns that are categories.

    Returns
    -------
    Prepared
    """
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import MissingIndicator, SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    names = [str(column) for column in table.columns]
    words = [name for name in names if name in levels]
    table = table.assign(**{name: _lumped(table[name], levels[name], preparation) for name in words})
    numbers = [name for name in names if name not in levels]
    kind = "most_frequent" if preparation.gaps == "most_frequent" else "median"
    scaler = StandardScaler() if preparation.scale else "passthrough"
    parts: list[Any] = [("numbers", make_pipeline(SimpleImputer(strategy=kind), scaler), numbers)] if numbers else []
    if words:
        known = [np.array(levels[name], dtype=object) for name in words]
        encoder = OneHotEncoder(categories=known, handle_unknown="ignore", sparse_output=False)
        parts.append(("words", make_pipeline(SimpleImputer(strategy="most_frequent"), encoder), words))
    if preparation.gaps == "indicator":
        parts.append(("gaps", MissingIndicator(features="all"), names))
    transformer = ColumnTransformer(parts, sparse_threshold=0, verbose_feature_names_out=False)
    made = [(name, name) for name in numbers] + [(f"{name}={level}", name) for name in words for level in levels[name]]
    made += [(f"{name} missing", name) for name in names] if preparation.gaps == "indicator" else []
    features, origin = zip(*made, strict=True)
    if len(set(features)) < len(features):
        raise WrongValue(f"client {who!r}: columns must have names that stay different, got {checks.shown(names)}")
    transformer.fit(table)
    own = {name: tuple(levels[name]) for name in words}
    return Prepared(who, tuple(names), features, origin, transformer, preparation, own)


def fit_own(who: str, table: pd.DataFrame, y: np.ndarray, transformer: Any) -> Prepared:
    """Fit a copy of a transformer of the user's own on the training rows of one client.

    Parameters
    ----------
    who : str
    table : pandas.DataFrame
        The client's columns, as they are.
    y : ndarray, shape (n,)
        Labels, for transformers that look at them.
    transformer : object
        With the methods `fit` and `transform` of scikit-learn.

    Returns
    -------
    Prepared
        Features have names where the transformer has `get_feature_names_out`.

    Raises
    ------
    ValueError
        Naming the client, with what the transformer says.
    """
    from sklearn.base import clone

    own = clone(transformer)
    try:
        own.fit(table, y)
        width = np.shape(own.transform(table))[-1]
    except (ValueError, TypeError, AttributeError) as error:
        told = " ".join(str(error).split())
        raise WrongValue(f"client {who!r}: prepare cannot be fitted on its training rows: {told}") from error
    features = None
    with suppress(AttributeError, ValueError):  # of pipelines in which a step names nothing
        features = tuple(map(str, own.get_feature_names_out()))
    columns = tuple(str(column) for column in table.columns)
    return Prepared(who, columns, features, features or ("",) * width, own)


def check_prepare(prepare: Any) -> None:
    """Refuse what is neither a `Preparation` nor a transformer of scikit-learn.

    Raises
    ------
    TypeError

    Warns
    -----
    FederationWarning
        For a transformer with which no model could be saved, and for one that could be read again in this session only.
    """
    transforms = all(hasattr(prepare, part) for part in ("fit", "transform", "get_params"))
    if isinstance(prepare, type) or not (transforms or isinstance(prepare, Preparation)):
        raise WrongType(
            "prepare must be a Preparation, or a transformer of scikit-learn such as make_pipeline(SimpleImputer()), "
            f"got {checks.shown(prepare)}"
        )
    if isinstance(prepare, Preparation):
        return
    try:
        if passing := [name for name in scikit.types_in(prepare) if name.startswith("__main__.")]:
            warn(
                f"prepare has {checks.shown(passing)}, defined in this program or notebook: models that are saved can "
                "be read where that is defined too; put it in a module of its own, so that it can be imported"
            )
    except TypeError as error:
        warn(
            f"{error}. Models of this federation can be trained and used here, but not saved: take a Preparation, or "
            "put what is not of scikit-learn into a module of its own"
        )


def levels_of(tables: Sequence[pd.DataFrame], preparation: Preparation) -> dict[str, tuple[str, ...]]:
    """The levels of each category: those that are given, or else those in these rows, in their order.

    Parameters
    ----------
    tables : sequence of pandas.DataFrame
        Cleaned.
    preparation : Preparation

    Returns
    -------
    dict of str to tuple of str
        By column, of all columns of words.
    """
    found: dict[str, set[str]] = {}
    for table in tables:
        for column in table.columns:
            if table[column].dtype == object:
                counts = table[column].value_counts()
                found.setdefault(str(column), set()).update(counts.index[counts >= preparation.rare])
    if preparation.rare:
        found = {column: {*held, OTHER} for column, held in found.items()}
    return {c: preparation.declared.get(c) or tuple(sorted(held, key=rank)) for c, held in found.items()}


def _lumped(words: pd.Series, levels: Sequence[str], preparation: Preparation) -> pd.Series:
    """The words of a category, with "other" for those that are no level, where rare ones are put together."""
    if not preparation.rare or str(words.name) in preparation.declared:
        return words
    return words.where(words.isin(levels) | words.isna(), OTHER)


# --- values ---------------------------------------------------------------------------------------------------------

NESTED = (list, tuple, dict, set, bytes, np.ndarray)
"""What is neither a number nor a text."""

LARGEST = 1e150
"""A number whose square is finite, as spreads need."""
GROUPED = re.compile(r"[-+]?\d+([.,'’ \u00a0\u202f]\d{3})*(,\d+|[.,'’ \u00a0\u202f]\d{3})(\.\d+)?")
"""Numbers with a decimal comma, or with something between their thousands."""

MEASURED = re.compile(r"^\s*[-+]?\d+(?:[.,]\d+)?\s*(?P<unit>[^\s\d.,][^\d]*)$")
"""A number and its unit."""

FAR = 10.0
"""Standard deviations from the mean of the training rows, beyond which a number is hardly of the same kind."""

SHIFTED = 4.0
"""The same of the median of several rows."""

OTHER = "other"
"""The level of what is rare."""


def rank(level: str) -> tuple[float, str]:
    """Numbers in their order, then words in theirs."""
    try:
        return float(level), level
    except ValueError:
        return math.inf, level


def _words(values: pd.Series) -> pd.Series:
    known = {value: word(value) for value in values.dropna().unique()}
    made = [known[value] if there else np.nan for value, there in zip(values, values.notna(), strict=True)]
    return pd.Series(made, index=values.index, dtype=object)


def _without_marks(column: str, values: pd.Series, marks: Sequence[Any], codes: bool = False) -> pd.Series:
    """The values as a plain column, with NaN where a mark stands; blanks around texts do not count."""
    values = columns.plain(values, f"column {column!r}")
    if not pd.api.types.is_numeric_dtype(values.dtype) and values.dtype.kind not in "mM":
        if len(nested := [value for value in values if isinstance(value, NESTED)]):
            raise WrongValue(f"column {column!r} must hold a number or a text in each row, got {nested[0]!r}")
        values = values.astype(object).map(lambda v: v.strip() if isinstance(v, str) else v, na_action="ignore")
    return values.mask(columns.marked(values, marks, codes))


def _numbers(column: str, values: pd.Series) -> pd.Series:
    """The values as floats, NaN where they are none."""
    if columns.is_of_time(values):
        raise WrongValue(f"column {column!r} holds dates or times: make numbers of them, or leave it out (ignore=…)")
    if not pd.api.types.is_numeric_dtype(values.dtype):
        values = _truths(values)
    try:
        numbers = pd.to_numeric(values, errors="coerce").astype(float)
    except OverflowError as error:
        raise WrongValue(f"column {column!r} must hold finite numbers up to {LARGEST:g}: {error}") from error
    if bad := int((numbers.abs() > LARGEST).sum()):
        raise WrongValue(f"column {column!r} must hold finite numbers up to {LARGEST:g}, got {bad} that are beyond")
    return numbers


def _truths(values: pd.Series) -> pd.Series:
    """Words that say True or False as 1 and 0, where the column holds nothing but these, 0 and 1."""
    said = [columns.truth_of(value) for value in values]
    if not any(isinstance(value, str) and truth is not None for value, truth in zip(values, said, strict=True)):
        return values
    found = [value if truth is None else truth for value, truth in zip(values, said, strict=True)]
    if any(isinstance(value, str) or (value not in (0, 1) and not pd.isna(value)) for value in found):
        return values
    return pd.Series(found, values.index, dtype=object, name=values.name)


def _in_groups(values: pd.Series) -> str:
    """What is said of a column of numbers that are written in another way."""
    return (
        f"holds numbers that are written such as {str(values.iloc[0])!r}: read them as numbers, for instance by "
        'decimal="," or thousands="," of pandas.read_csv, which from_csv takes'
    )


def check_numbers(who: str, column: Any, values: pd.Series) -> None:
    """Refuse a column that does not hold numbers, where nothing prepares it."""
    if not pd.api.types.is_numeric_dtype(values.dtype):
        try:
            known = _without_marks(str(column), values, Preparation().marks(str(column))).dropna()
            odd = known[_numbers(str(column), known).isna()]
        except ValueError as error:
            raise WrongValue(f"client {who!r}: {error}") from error
        if len(odd) and all(map(GROUPED.fullmatch, map(str, odd.unique()))):
            raise WrongValue(f"client {who!r}: column {column!r} {_in_groups(odd)}")
        raise WrongValue(
            f"client {who!r}: column {column!r} must hold numbers, got dtype {values.dtype}: prepare=Preparation() "
            "takes marks such as '?' for gaps, and makes a column of each level of words"
        )


def refuse_gaps(who: str, table: pd.DataFrame) -> None:
    """Refuse columns with gaps, all in one message."""
    lost = table.isna().sum()
    if (lost := lost[lost > 0]).any():
        each = ", ".join(f"{column!r} lacks {n}" for column, n in lost.items())
        raise WrongValue(
            f"client {who!r}: column {each} of {len(table)} values; fill them in (prepare=Preparation() does), or "
            "leave out the rows (a column that a client does not have at all may be empty)"
        )
