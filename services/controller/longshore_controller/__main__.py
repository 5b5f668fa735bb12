"""`python -m longshore_controller`."""

import sys

from longshore_controller.main import main

if __name__ == "__main__":
    sys.exit(main())
