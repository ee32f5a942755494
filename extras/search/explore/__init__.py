"""Joint search for hardware and mapping: configurations on boards, with programs of models compiled for each."""

from weft.extras.search.explore.explore import Exploration, explore
from weft.extras.search.explore.space import Space

__all__ = ["Exploration", "Space", "explore"]
