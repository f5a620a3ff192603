"""The parts of the convolution template."""
