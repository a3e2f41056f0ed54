"""The one error that a user is meant to read."""


class ProdmError(Exception):
    """The input or the settings are wrong.

    The message is one sentence: the rule, what was found, and what to do. The command
    line prints it and exits 1. Anything else that is raised is a bug and keeps its traceback.
    """
