"""Extra for searches: configurations, plans of layers, graph substitutions, and rewrites within an error budget."""

from weft.hdl.extras import Extra

EXTRA = Extra(
    package=__name__,
    title="Search",
    services={
        "apply a rewrite": "weft.extras.search.budget:apply_rewrite",
        "round within a budget": "weft.extras.search.budget:round_within_budget",
        "substitute operators": "weft.extras.search.substitute:substitute_operators",
        "read a tuning": "weft.extras.search.tune:Tuning.load",
    },
)
