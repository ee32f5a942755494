"""Lowering: operators with plans to tasks."""
