"""Boards: one file each, which is found by being here."""
