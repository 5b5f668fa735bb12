"""`python -m longshore_rollout_worker`."""

import sys

from longshore_rollout_worker.main import main

if __name__ == "__main__":
    sys.exit(main())
