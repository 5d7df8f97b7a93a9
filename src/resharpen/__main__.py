"""Entry point of `resharpen` and `python -m resharpen`: handles signals before anything slow is imported."""

from resharpen.environment import settle
from resharpen.signals import end_at_once


def main() -> None:
    with end_at_once():
        settle()
        from resharpen import cli

        cli.main()


if __name__ == "__main__":
    main()
