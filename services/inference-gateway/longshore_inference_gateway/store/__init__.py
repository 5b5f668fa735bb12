"""Persistence of sessions, aliases and policy versions: the Protocol is in domain.ports, the SQL back end here."""
