"""A model in, a faster model out. stages has the order of things:

models/ makes the model; profiling/ says where its time goes; extraction/ makes problems of what is worth it;
searching asks the library for kernels (adapters) and searches others; installation/ puts them into the model,
and verification/ holds that against the model as it was; outcome, page and readme say what became of it.
"""
