"""The theory of Set Complement under constant attention, checked by computation."""
