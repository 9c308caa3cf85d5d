"""
=======================================================
What a convolutional process sees in handwritten digits
=======================================================

The functions of this Gaussian process are sums of responses to the patches of an image. So we can
see which patches it has learned, and which part of a digit speaks for which class.
"""

# %%
# Fit
# ---
# Images have 8 × 8 pixels, between 0 and 1, and 36 patches of 3 × 3 pixels. There are 64 inducing
# patches, and 64 orthogonal ones, which cost less. ``global_kernel=None`` leaves out the function
# of the whole image, so the sum of responses is the whole model. ``beta=0.1`` gives the divergence
# a tenth of its weight in the bound, because the full bound is too cautious for classes.
#
# We compare with a process whose kernel is on all pixels, with the same ``beta``, and with a
# support vector machine with calibrated probabilities.

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from sklearn.calibration import CalibratedClassifierCV, CalibrationDisplay
from sklearn.datasets import load_digits
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC

from skgpstoch import ConvolutionalGPClassifier, SVGPClassifier
from skgpstoch.display import InducingPatchesDisplay, PatchResponsesDisplay

X, y = load_digits(return_X_y=True)
X = X / 16.0
X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)
patches = ConvolutionalGPClassifier(
    global_kernel=None,
    posterior="solve",
    n_inducing=64,
    n_orthogonal=64,
    beta=0.1,
    max_iter=60,
    random_state=0,
)
pixels = SVGPClassifier(
    ConstantKernel(10.0) * RBF(2.0),
    n_inducing=100,
    beta=0.1,
    learning_rate_init=0.2,
    max_iter=40,
    random_state=0,
)
models = {
    "patches": patches,
    "pixels": pixels,
    "calibrated SVC": CalibratedClassifierCV(SVC(gamma=0.25), ensemble=False),
}
for model in models.values():
    model.fit(X_train, y_train)
print(f"responses: {patches.kernel_}, places: {patches.location_kernel_}")

# %%
# Scores
# ------
# 450 digits are held out. Patches make three errors and the support vector machine four, so their
# accuracy is about the same, but their log-losses differ. The log-loss of patches is about half of
# that of pixels, and less than half of that of the support vector machine. The last column counts
# the errors among the 22 least certain digits (5 %): the processes are uncertain where they err.

probability = {name: model.predict_proba(X_test) for name, model in models.items()}  # (450, 10)
print(f"{'':<16}{'accuracy':>10}{'log-loss (nats)':>17}{'errors':>8}{'uncertain':>11}")
for name, p in probability.items():
    wrong = p.argmax(1) != y_test
    uncertain = wrong[np.argsort(p.max(1))[:22]].sum()
    print(f"{name:<16}{1 - wrong.mean():10.3f}{log_loss(y_test, p):17.3f}", end="")
    print(f"{wrong.sum():8}{uncertain:11}")

# %%
# Confidence and accuracy
# -----------------------
# Left: the held-out digits in five groups of 90, from the least certain to the most certain, with
# the mean of their largest probability and their accuracy. Both processes are right wherever they
# are certain. All their errors are in the first group, where they are right more often than they
# predict. The support vector machine also errs where it is certain. The standard error of each
# point is some two or three per cent. Right: the processes are nearly certain about four digits in
# five, the support vector machine about one in four.

figure, axes = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
left, right = axes
for name, p in probability.items():
    confidence, is_right = p.max(1), p.argmax(1) == y_test
    CalibrationDisplay.from_predictions(
        is_right, confidence, n_bins=5, strategy="quantile", name=name, ax=left
    )
    right.hist(confidence, bins=np.linspace(0.3, 1, 36), histtype="step", lw=1.5, label=name)
left.set(xlabel="largest probability", ylabel="accuracy", xlim=(0.8, 1.005), ylim=(0.8, 1.005))
right.set(xlabel="largest probability", ylabel="digits", yscale="log")
plt.show()

# %%
# Inducing patches
# ----------------
# The figure shows the patches with the largest responses. Above each is the class that it speaks
# for (+) or against (−) most in its place, in units of the latent functions. The patches are edges,
# ends and crossings of strokes; nearly empty patches tell digits apart, too. One pixel further, a
# patch has nearly the same response, because the length-scale of places is more than five pixels.

InducingPatchesDisplay.from_estimator(patches, n_patches=32)
plt.show()

# %%
# A clear digit and a doubtful one
# --------------------------------
# Red parts speak for the class and blue ones against it, relative to the mean of all ten classes.
# Below each map are its sum and the latent mean, which differ only by the prior mean.
#
# Nearly all parts of the 4 speak for a 4. The left of its closed half speaks against a 3, which is
# open there, and the left of its foot against a 1.
#
# The 8 is one of the three errors: its lower loop is filled, so it looks like a black bar with a
# head. The empty corner at its lower left and the lower right edge of the bar speak for a 1. Both
# edges speak for an 8. The head speaks for a 9, and the foot against it. No sum is far above the
# others, so no class is certain.

p = probability["patches"]
clear = np.argmax(p[:, 4])
doubtful = np.flatnonzero(y_test == 8)[p[y_test == 8, 8].argmin()]
display = PatchResponsesDisplay.from_estimator(
    patches, X_test[[clear, doubtful]], classes=[0, 1, 3, 4, 8, 9]
)
for ax, i in zip(display.axes_[:, 0], (clear, doubtful), strict=True):
    ax.set_title(f"is {y_test[i]}", fontsize=8)
plt.show()
