"""The commands: they parse, call and print. Related commands share a file."""
