"""`python -m isotherm`."""

from isotherm.cli import main

if __name__ == "__main__":
    main()
