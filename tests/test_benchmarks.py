"""What benchmarks import of ours is there: their rivals are not, so that they do not run here."""

import ast
import importlib
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "benchmarks").rglob("*.py"))


def imported(script):
    """Yield module and name of each import of ours."""
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("skgpstoch"):
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_what_a_script_imports_of_ours_exists(script):
    for module, name in imported(script):
        if module == "skgpstoch.botorch":  # needs BoTorch
            continue
        assert hasattr(importlib.import_module(module), name) or importlib.util.find_spec(
            f"{module}.{name}"
        ), f"{module}.{name}"
