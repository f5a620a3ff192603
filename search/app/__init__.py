"""What the search's commands share: run folders, observers, resuming, and overrides."""
