"""Memory buses between the core, the link and a board's memory."""
