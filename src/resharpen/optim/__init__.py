"""Hyperparameter draws, schedule, AdamW and BEMA, all with a per-model axis."""
