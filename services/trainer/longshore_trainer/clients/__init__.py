"""The services a trainer talks to: trajectory store, gateway, controller."""
