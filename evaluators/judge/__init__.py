"""The trusted side of a measurement: is the kernel right, how fast is it, and whose code ran?"""
