"""Documents by their vectors: a linear SVM on frozen ones, one class for each heading.

What an encoder has understood shows beyond what it was trained for. Headings are the most frequent ones; a
document may have several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np


def headings(labels: Sequence[Sequence[str]], count: int = 14, most: float = 1.0) -> list[str]:
    """The ``count`` most frequent, of those that no more than the share ``most`` of the documents have."""
    found = Counter(one for some in labels for one in dict.fromkeys(some))
    return sorted([one for one, times in found.most_common() if times <= most * len(labels)][:count])


def classified(vectors: Any, labels: Sequence[Sequence[str]], of: Sequence[str]) -> tuple[float, np.ndarray]:
    """Five-fold cross-validation over the documents with any heading: macro-F1, and each document's F1.

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
