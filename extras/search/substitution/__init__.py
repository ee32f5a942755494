"""Graph substitutions: rules between operators, found by search and proven, and their application to segments."""
