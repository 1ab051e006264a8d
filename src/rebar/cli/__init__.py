"""The command line: the only layer that reads argv and the environment."""
