"""The command `ideatree report`: the report of a run, comparison, campaign or profile as one HTML file."""
