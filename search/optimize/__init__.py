"""Makes a model faster: the command `ideatree optimize`. stages has the steps after the profile, in order:

models/ loads the model; profiling/ finds where its time goes; extraction/ turns promising parts into
problems; searching tries library kernels (adapters) and searches new ones; installation/ writes the model
with kernels; verification/ compares it to the original; outcome, profile_page and readme report the result.
"""
