"""Engines advance an ensemble and evaluate it; `base.py` says what one is."""
