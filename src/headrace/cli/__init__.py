"""The command line. `main` is the entry point of the `headrace` program."""

from headrace.cli.app import main

__all__ = ["main"]
