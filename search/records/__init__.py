"""The records of a search: the tree of ideas and variants, events, the journal, the budget and the
ranking."""
