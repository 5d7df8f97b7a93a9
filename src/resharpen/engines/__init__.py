"""Engines advance an ensemble and evaluate it; `base.py` defines their interface."""
