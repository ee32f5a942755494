"""Extras: parts of weft that the core finds by entry points and never imports (see `weft.hdl.extras`)."""
