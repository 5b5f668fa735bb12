"""Clients of other services: none, everybody calls this one."""
