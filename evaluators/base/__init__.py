"""Small tools for every layer: atomic files, a JSONL store, records as JSON, the cause of a failure in one
line, the nearest known name, the metadata of an option, and the error for a wrong call. Standard library
only.
"""
