"""What several tests share: models of units, benches, random programs and graphs."""
