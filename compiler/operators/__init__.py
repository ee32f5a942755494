"""The device operators: one file describes each, and is found by being here."""
