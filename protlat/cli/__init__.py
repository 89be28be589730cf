"""The command line: one file per verb, loaded when called."""
