"""python -m rebar VERB ...: the same as the command."""

import sys

from rebar.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
