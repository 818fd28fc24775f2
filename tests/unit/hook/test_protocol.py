"""The constants that the plugin (Java) shares with the service and the hook (Python)."""

from __future__ import annotations

import runpy
from pathlib import Path

PROTOCOL = Path(__file__).parents[3] / "opensearch_plugin/protocol.py"


def test_the_java_file_is_generated_from_the_constants_of_python():
    generated = runpy.run_path(str(PROTOCOL))
    assert generated["FILE"].read_text("utf-8") == generated["java"]()
