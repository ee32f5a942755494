"""Models that come with weft; `weft demo` runs one of them."""
