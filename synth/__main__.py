"""`python -m synth`, and the console script: Ctrl-C shows no traceback, not even while modules are loaded."""

import sys


def run() -> None:
    """`synth.cli.main.run`."""
    try:
        from synth.cli.main import run as run_cli

        run_cli()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    run()
