"""The torch engine: `definition.py` defines what is computed, `fast.py` makes it fast."""
