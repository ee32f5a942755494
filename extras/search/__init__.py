"""Searches: for configurations, plans of layers, graph substitutions, and rewrites within a budget of errors."""

from weft.hdl.extras import Extra

EXTRA = Extra(
    title="Search",
    commands=(
        "weft.extras.search.tune_command",
        "weft.extras.search.explore_command",
        "weft.extras.search.rules_command",
    ),
    services={
        "round within a budget": "weft.extras.search.budget:rounded",
        "substitute operators": "weft.extras.search.substitute:substituted",
        "read a tuning": "weft.extras.search.tuning:Tuning.load",
    },
)
