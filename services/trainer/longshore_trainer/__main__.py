"""`python -m longshore_trainer --job FILE`."""

from longshore_trainer.main import main

raise SystemExit(main())
