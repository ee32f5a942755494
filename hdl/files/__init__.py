"""Files that are read with a schema, and files that are kept in a cache."""
