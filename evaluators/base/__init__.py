"""Small tools that every layer uses: atomic files, a JSONL store, the cause of a failure in one line, the nearest
known name, the metadata of an option, and the error for a wrong call. Standard library only.
"""
