"""What the command line can do: parse, call, print. A file for each kind of thing that a user wants."""
