"""`python -m longshore_sandbox_scheduler`."""

import sys

from longshore_sandbox_scheduler.main import main

if __name__ == "__main__":
    sys.exit(main())
