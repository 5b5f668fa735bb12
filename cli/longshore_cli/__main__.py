"""`python -m longshore_cli` and the `longshore` script."""

from __future__ import annotations


def main() -> None:
    """Runs the command line; ends the process with its exit code."""
    from longshore_cli.main import app

    app()


if __name__ == "__main__":
    main()
