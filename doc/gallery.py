"""Arguments with which sphinx-gallery runs the examples."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any


def quick_arguments(gallery_conf: dict[str, Any], script_vars: dict[str, Any]) -> list[str]:
    """Let examples take few flights, and keep the quick start's pictures out of the sources."""
    name = Path(script_vars["src_file"]).name
    if name == "plot_quickstart.py":
        return ["--quick", "--output-dir", tempfile.mkdtemp()]
    return ["--quick"] if name == "plot_flights_from_parquet.py" else []
