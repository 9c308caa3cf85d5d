"""Fits and predictions on an accelerator, a pretend one: as on the CPU, and with little traffic."""
