"""Predictive distributions: what `predict_distribution` returns."""

from __future__ import annotations

from .predictive import PredictiveDistribution

__all__ = ["PredictiveDistribution"]

PredictiveDistribution.__module__ = __name__  # pickles name the public path
