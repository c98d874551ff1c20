"""`python -m isotherm`, and the program `isotherm`."""

import os
import signal


def main() -> None:
    """Run the program. While it is being loaded, Ctrl-C ends it at once and without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from isotherm.cli import main

    main()


if __name__ == "__main__":
    main()
