"""The operators that the device has, one file each or a few that are alike, found by being there."""
