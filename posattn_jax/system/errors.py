"""Errors for users: each message is one line that names what was given and what is allowed."""


class InputError(ValueError):
    """The configuration, the flags or the data are wrong: nothing was started. Exit code 2."""


class RunError(RuntimeError):
    """The run failed while running. Exit code 1."""
