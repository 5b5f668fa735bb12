"""`python -m longshore_inference_gateway`."""

import sys

from longshore_inference_gateway.main import main

if __name__ == "__main__":
    sys.exit(main())
