"""The library's entries: records, cards, storage, retrieval, and the user functions `best` and `override`."""
