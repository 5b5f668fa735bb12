"""`python -m longshore_task_catalog`."""

import sys

from longshore_task_catalog.main import main

sys.exit(main())
