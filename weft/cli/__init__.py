"""The command line: a file a command, and the options that commands share."""
