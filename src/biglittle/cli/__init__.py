"""The command line: `biglittle generate`, `chat`, `convert`, `demo`, `doctor` and `models`."""

import sys

__all__ = ["main"]


def main() -> None:
    """The entry point of the script."""
    try:  # Ctrl-C may come while the libraries are being imported
        from .main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
