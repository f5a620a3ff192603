"""One device: the worker that owns its processes, and the watchdog that supervises them."""
