"""RTL simulation: a device, and benches of components."""
