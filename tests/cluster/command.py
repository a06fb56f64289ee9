"""The command `specdec`, as a script for the Python of the tests."""

from specdec_core.cli.start import main

if __name__ == "__main__":
    main()
