"""Operators to tasks."""
