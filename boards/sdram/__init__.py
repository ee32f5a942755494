"""SDRAM: the chip's rules, the controller, clock-phase calibration, and simulation models."""
