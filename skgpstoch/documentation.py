"""Find the API reference's pages, for links in HTML representations.

The root is the Documentation among the URLs of the package (``[project.urls]`` in pyproject.toml,
which installers write down as ``Project-URL``). Without it there are no links: dead ones are worse.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, metadata

DISTRIBUTION = "skgpstoch"


def documentation_root() -> str | None:
    """Return the URL of the documentation of the installed package, if it says one."""
    try:
        given = metadata(DISTRIBUTION).get_all("Project-URL") or []
    except PackageNotFoundError:  # run from its sources
        return None
    urls = {
        label.strip().lower(): url.strip() for label, _, url in (u.partition(",") for u in given)
    }
    return urls.get("documentation")


def page_template(cls: type) -> str:
    """Return the address of a class's page, for scikit-learn to fill in; "" if there is none."""
    root = documentation_root()
    if root is None or cls.__module__ != DISTRIBUTION:  # which public classes have
        return ""
    return root.rstrip("/") + "/generated/{estimator_module}.{estimator_name}.html"
