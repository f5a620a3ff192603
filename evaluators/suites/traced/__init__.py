"""Traced calls of operators: records of them, their text, files of them, arguments for them."""
