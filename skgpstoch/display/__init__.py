"""Plots of predictive uncertainty, training and images, in the style of scikit-learn's Displays.

A Display holds the numbers of a plot. Its method `plot` draws them and keeps the matplotlib
artists; `from_estimator` and `from_predictions` compute and draw at once. Only `plot` imports
matplotlib, which is optional.
"""

from .bars import FeatureImportancesDisplay, StackingWeightsDisplay
from .images import InducingPatchesDisplay, PatchResponsesDisplay
from .predictions import PredictionIntervalDisplay, RegressionCalibrationDisplay
from .report import ReportDisplay
from .training import ADMMConvergenceDisplay, LearningCurveDisplay

__all__ = [
    "ADMMConvergenceDisplay",
    "FeatureImportancesDisplay",
    "InducingPatchesDisplay",
    "LearningCurveDisplay",
    "PatchResponsesDisplay",
    "PredictionIntervalDisplay",
    "RegressionCalibrationDisplay",
    "ReportDisplay",
    "StackingWeightsDisplay",
]

for _name in __all__:  # pickles name the public path, wherever a class lives
    globals()[_name].__module__ = __name__
