"""Planted weights: checkpoints whose greedy output is known in advance."""
