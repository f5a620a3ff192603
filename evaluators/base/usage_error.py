"""The error for a wrong call."""


class UsageError(Exception):
    """The call was wrong. The message is one line: what is wrong, the value, and the nearest valid choice."""
