"""The untrusted side of a measurement: the process that runs a kernel, and how it is started."""
