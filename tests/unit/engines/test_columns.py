"""Features of an OpenSearch index in Base64."""

from __future__ import annotations

import numpy as np
import pytest

from rerank.common.errors import EngineError
from rerank.engines.opensearch.columns import Column

COLUMN = Column("<f4", 3, since=0.0)


def test_rows_are_decoded_as_they_were_encoded():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    first, second = COLUMN.encode(values)
    decoded, missing = COLUMN.decode([first, None, second])
    assert decoded.tolist() == [[0, 1, 2], [0, 0, 0], [3, 4, 5]]
    assert missing.tolist() == [False, True, False]


@pytest.mark.parametrize("text", ["", "AAA", "AAAA", "AAAAAAAAAAAAAA==", "A===AAAAAAAAAAAA", "\u00e4" * 16])
def test_a_text_that_is_no_row_is_refused(text):
    (row,) = COLUMN.encode(np.zeros((1, 3), np.float32))
    assert len(row) == 16
    for texts in ([text], [row, text], [text, row]):
        with pytest.raises(EngineError, match="not 3 values of <f4; encode them again"):
            COLUMN.decode(texts)
