"""The library's entries: records, cards, storage, retrieval, and `best` and `override`, which use them."""
