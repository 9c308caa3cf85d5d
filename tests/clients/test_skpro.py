"""The guide's adapter to skpro, and what skpro makes of the distributions."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from pages import DOC, run_page

pytest.importorskip("skpro")
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]  # theirs


@pytest.fixture(scope="module")
def page():
    """The names of the page of the guide, all of whose code has run."""
    return run_page(DOC / "user_guide" / "other_packages.rst", "skpro")


def test_distributions_are_skpros(page):
    theirs, ours = page["theirs"].predict_proba(page["table"]), page["distribution"]
    y = page["targets"]
    assert_allclose(theirs.mean().to_numpy()[:, 0], ours.mean())
    assert_allclose(theirs.log_pdf(y).to_numpy()[:, 0], ours.logpdf(page["y"]))
    assert_allclose(theirs.ppf(0.3).to_numpy()[:, 0], ours.ppf(0.3))
    assert_allclose(theirs.iloc[3:5].var().to_numpy()[:, 0], ours.var()[3:5])
    assert theirs.sample(3).shape == (3 * len(y), 1)


def test_losses_of_skpro(page):
    from skpro.metrics import LogLoss, PinballLoss

    theirs = page["theirs"]
    loss = LogLoss()(page["targets"], theirs.predict_proba(page["table"]))
    assert_allclose(loss, -page["distribution"].logpdf(page["y"]).mean())
    quantiles = theirs.predict_quantiles(page["table"], alpha=[0.1, 0.9])
    assert np.isfinite(PinballLoss()(page["targets"], quantiles))
