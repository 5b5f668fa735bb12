"""The controller's database: runs, events, groups, attempts with their leases, step metrics."""
