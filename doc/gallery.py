"""Arguments with which sphinx-gallery runs the examples."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any


def quick_arguments(gallery_conf: dict[str, Any], script_vars: dict[str, Any]) -> list[str]:
    """The quick start takes few flights and keeps its pictures out of the sources."""
    if Path(script_vars["src_file"]).name != "plot_quickstart.py":
        return []
    return ["--quick", "--output-dir", tempfile.mkdtemp()]
