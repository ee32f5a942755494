"""Graph substitutions: rules between operators that a search found and a proof holds, and their use on segments."""
