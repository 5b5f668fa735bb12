"""The controller: runs, leases, the plan, evaluation and the verdict."""
