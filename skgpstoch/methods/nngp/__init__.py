"""NNGP: the exact process on the nearest neighbours of each row."""
