"""Expressions of operators, one module per kind; `weft.extras.training.gradient.meaning` imports all modules here."""
