"""A model in, a faster model out: where the time of a model goes, and what can be won there.

model_config chooses the model, model_source and architectures make it; recording runs it once and notes every
call of an operator; timing has the time of each call; chains finds the calls that could be one kernel;
targets says of each operator and chain what the roofline and the library leave to be won; profiling puts them
together; profile is the record of it all, table and page show it.
"""
