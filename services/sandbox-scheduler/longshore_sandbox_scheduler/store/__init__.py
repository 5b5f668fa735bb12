"""Sandbox records that outlive the process."""
