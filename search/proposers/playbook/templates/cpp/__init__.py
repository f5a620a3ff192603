"""C++ for CPUs, compiled by the machine's compiler without torch's headers, called through ctypes."""
