"""`python -m longshore_task_catalog`."""

import sys

from longshore_task_catalog.main import main

if __name__ == "__main__":
    sys.exit(main())
