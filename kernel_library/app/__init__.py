"""What the library's commands share."""
