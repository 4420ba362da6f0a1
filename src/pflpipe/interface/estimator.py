"""A classifier with the conventions of scikit-learn, for its pipelines and searches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from pflpipe.cells import Model, Privacy, Training
from pflpipe.errors import ConfigError
from pflpipe.interface.frames import clients_of
from pflpipe.interface.training import train

_LABEL, _PERSON = "the label", "the person"
"""Columns that ``fit`` adds to the table."""
_TRAINING = Training(rounds=50, local_epochs=1, batch_size=0, optimizer="sgd", lr=1.0)


class FederatedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose released model is trained by ``train``; ``score`` is its accuracy.

    A search over its parameters trains once for each candidate and fold: no epsilon covers that all
    together, so choose on data of other people.

    Attributes:
        result_: the ``Result`` of the training, with the claim and the personal models.
        classes_: the labels.

    Args:
        method, model, training, privacy, seed: as in ``train``; without ``training`` 50 rounds
            of one step.
        user: the column of people's ids in the table ``X``. None: each row is one person.
        classes: all labels that there may be, which a private run needs. None: those of ``y``.
        columns: ``vocabularies``, ``ranges`` ... of ``clients_of`` for the table ``X``.
        further: other arguments of ``train``.
    """

    def __init__(
        self,
        method: str = "fedavg",
        *,
        user: str | None = None,
        model: str | Model = "linear",
        training: Training | None = None,
        privacy: Privacy | None = None,
        classes: Sequence[Any] | None = None,
        columns: Mapping[str, Any] | None = None,
        further: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        self.method, self.user, self.model, self.training = method, user, model, training
        self.privacy, self.classes, self.columns = privacy, classes, columns
        self.further, self.seed = further, seed

    def fit(self, X: Any, y: Any) -> FederatedClassifier:
        """Train on all rows and return the classifier itself.

        Args:
            X: a table, or numbers ``[N, D]``.
            y: the label of each row.

        Raises:
            ConfigError: a private run without ``classes``.
            PflpipeError: as ``clients_of`` and ``train``.
        """
        do = "add classes=[...]: a label of one person would change the shape of the model"
        fits = self.privacy is None or self.classes is not None
        ConfigError.unless(fits, "classes is missing", do=do)
        table, y = self._table(X, y)
        check_classification_targets(y)
        self.classes_ = np.unique(y if self.classes is None else self.classes)
        places = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        unknown = sorted(set(np.asarray(y)[self.classes_[places] != y].tolist()))
        ConfigError.unless(not unknown, "y", unknown, f"one of {self.classes_.tolist()}")
        clients = clients_of(
            table.assign(**{_LABEL: places, _PERSON: np.arange(len(table))}),
            user=self.user or _PERSON,
            label=_LABEL,
            classes=max(2, len(self.classes_)),
            features=[name for name in table.columns if name != self.user],
            **(self.columns or {}),
        )
        self.result_ = train(
            self.method,
            clients,
            model=self.model,
            training=self.training or _TRAINING,
            privacy=self.privacy,
            seed=self.seed,
            **({"test_fraction": 0.0} | dict(self.further or {})),
        )
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the label of each row, by the released model."""
        check_is_fitted(self)
        places = self.result_.predict(self._table(X)[0]).astype(int)
        labels: np.ndarray = self.classes_[places]
        return labels

    def _table(self, X: Any, *y: Any) -> tuple[pd.DataFrame, Any]:
        """Return checked rows as a table, and their labels, if these are given."""
        if self.user is not None or self.columns:  # words are checked where they are declared
            table = pd.DataFrame(X)
            if not y:
                return table, None
            labels = column_or_1d(y[0])
            check_consistent_length(table, labels)
            fits, expected = not pd.isna(labels).any(), "a label for each row"
            ConfigError.unless(fits, "y", "no label in some rows", expected)
            return table, labels
        given = dict(zip("y", y, strict=False))
        found = validate_data(self, X, **given, reset=bool(given))
        rows, labels = found if given else (found, None)
        names = [f"column {place}" for place in range(rows.shape[1])]
        return pd.DataFrame(rows, columns=names), labels
