"""The readable engine: `definition.py` says what is computed, `fast.py` how it is made fast."""
