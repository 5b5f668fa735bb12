"""`python -m longshore_trajectory_store`."""

import sys

from longshore_trajectory_store.main import main

if __name__ == "__main__":
    sys.exit(main())
