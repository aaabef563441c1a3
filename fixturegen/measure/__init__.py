"""Margins and fault detection of a checkpoint, measured with transformers."""
