"""Classify documents by their frozen vectors, with a linear SVM and one class for each heading.

This measures an encoder on a task that it was not trained for. The classes are the most frequent headings. A
document can have several headings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np


def headings(labels: Sequence[Sequence[str]], count: int = 14, most: float = 1.0) -> list[str]:
    """Return the ``count`` most frequent headings that at most the share ``most`` of documents have."""
    found = Counter(one for some in labels for one in dict.fromkeys(some))
    return sorted([one for one, times in found.most_common() if times <= most * len(labels)][:count])


def classified(vectors: Any, labels: Sequence[Sequence[str]], of: Sequence[str]) -> tuple[float, np.ndarray]:
    """Return macro-F1 and the F1 of each document, from five-fold cross-validation.

    Documents without any heading of ``of`` are ignored.

    vectors: (N, E) dense or sparse rows of length 1.
    """
    from sklearn.metrics import f1_score
    from sklearn.model_selection import KFold, cross_val_predict
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.preprocessing import MultiLabelBinarizer
    from sklearn.svm import LinearSVC

    kept = [i for i, some in enumerate(labels) if {*some} & {*of}]
    wanted = MultiLabelBinarizer(classes=list(of)).fit_transform(
        [[one for one in labels[i] if one in of] for i in kept]
    )
    svm = OneVsRestClassifier(LinearSVC(class_weight="balanced", C=1.0, tol=1e-2, max_iter=300))
    guessed = cross_val_predict(svm, vectors[kept], wanted, cv=KFold(5, shuffle=True, random_state=0))
    each = 2 * (wanted & guessed).sum(axis=1) / np.maximum(wanted.sum(axis=1) + guessed.sum(axis=1), 1)
    return float(f1_score(wanted, guessed, average="macro")), each
