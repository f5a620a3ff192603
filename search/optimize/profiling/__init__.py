"""Finds where a model's time goes, and what could be gained there.

recording runs the model once and records every operator call (values tracks which tensors share memory);
timing measures each call; chains finds calls that could be one kernel; targets computes what each operator
and chain could gain by the roofline and the library; profile puts them together; record is the content of
`profile.json`, table prints it.
"""
