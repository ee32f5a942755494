"""The RTL in simulation, as a device and on benches."""
