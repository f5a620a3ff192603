"""One search: the engine and its session, from asking a strategy to a journal of verdicts."""
