"""`python -m longshore_reward_verifier`."""

import sys

from longshore_reward_verifier.main import main

if __name__ == "__main__":
    sys.exit(main())
