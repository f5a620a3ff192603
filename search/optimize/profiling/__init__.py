"""Where the time of a model goes, and what can be won there.

recording runs it once and notes every call of an operator, with values, which tensors share memory; timing
has the time of each call; chains finds the calls that could be one kernel; targets says of each operator and
chain what the roofline and the library leave to be won; profile puts them together; record is what
`profile.json` holds, table shows it on a terminal.
"""
