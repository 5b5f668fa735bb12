"""`python -m longshore_inference_gateway.engine_host`."""

import sys

from longshore_inference_gateway.engine_host.main import main

if __name__ == "__main__":
    sys.exit(main())
