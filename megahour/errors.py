"""The form of errors about data: a reason for machines, a sentence for people."""

from __future__ import annotations


class DataError(Exception):
    """Something is wrong with the data, not with the machine. `reason` is a code, the text says what to do."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return self.message
