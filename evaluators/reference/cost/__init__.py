"""The work of a call in operations and bytes, and how fast this machine can do it."""
