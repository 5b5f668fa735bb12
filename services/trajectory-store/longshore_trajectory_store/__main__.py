"""`python -m longshore_trajectory_store`."""

import sys

from longshore_trajectory_store.main import main

sys.exit(main())
