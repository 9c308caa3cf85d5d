"""Find the API reference's pages, for links in HTML representations.

The root is the URL named Documentation in the package's metadata (``[project.urls]`` in
pyproject.toml, which installers store as ``Project-URL``). Without it there are no links, because
dead links would be worse.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, metadata

DISTRIBUTION = "skgpstoch"


def documentation_root() -> str | None:
    """Return the documentation URL of the installed package; None if it has none."""
    try:
        given = metadata(DISTRIBUTION).get_all("Project-URL") or []
    except PackageNotFoundError:  # the package runs from its sources
        return None
    urls = {
        label.strip().lower(): url.strip() for label, _, url in (u.partition(",") for u in given)
    }
    return urls.get("documentation")


def page_template(cls: type) -> str:
    """Return the address of a class's page, for scikit-learn to fill in; "" if there is none."""
    root = documentation_root()
    if root is None or cls.__module__ != DISTRIBUTION:  # only public classes have a page
        return ""
    return root.rstrip("/") + "/generated/{estimator_module}.{estimator_name}.html"
