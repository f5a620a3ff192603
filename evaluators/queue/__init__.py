"""A queue of device operations in a folder that machines share: searches put requests there, and workers put
verdicts. Only the file system connects the two."""
