"""The task catalog: content-locked tasks, their splits, and the evidence about them."""
