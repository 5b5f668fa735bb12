"""Sandbox runtimes, one package each, all behind `domain.runtime.Runtime`."""
