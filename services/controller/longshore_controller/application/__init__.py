"""What carries out the domain's decisions through ports: submission, leasing, the run driver, reports."""
