"""Device operators: one file describes each; `operator_of` finds them by scanning this folder."""
