"""The trajectory store: attempts and outcomes, turns, groups, rewards, and the ledger of what was trained on."""
