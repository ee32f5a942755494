"""SDRAM: controller, calibration, and models of chips."""
