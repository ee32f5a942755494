"""SPI flash: controller, images, and models of chips."""
