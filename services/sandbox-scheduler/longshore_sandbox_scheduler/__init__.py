"""Sandbox scheduler: grants sandboxes of task images, keeps their leases, and hosts the local runtime's agent."""
