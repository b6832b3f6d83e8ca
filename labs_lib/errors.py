"""Errors a user can act on: one clear sentence that names what is wrong and what to do.

Everything the library refuses on purpose derives from `LabError`, so that a command line or a
notebook can print the sentence without a traceback and exit non-zero. Anything else that escapes
is a defect of this library and keeps its traceback.
"""


class LabError(Exception):
    """Base of every deliberate refusal; its text is the sentence shown to the user."""


class ConfigError(LabError):
    """A profile, a config key or a notebook parameter is unknown, mistyped or out of range."""


class StorageError(LabError):
    """A file could not be written or read back, for example because the disk is full."""


class CheckpointError(LabError):
    """A checkpoint is missing, incomplete or differs from what its manifest promises."""


class IdentityError(CheckpointError):
    """A resume is refused because config, base, data or code differ from the saved run's."""


class EvidenceExistsError(LabError):
    """Writing would silently replace the evidence of an earlier run."""


class BaseModelError(LabError):
    """A base model is missing, has the wrong hash or architecture, or needs absent hardware."""


class BudgetError(LabError):
    """An example is over its token budget; it is refused by name, never truncated."""


class LearningScopeError(LabError):
    """Something tried to open a held-out file while a policy was being trained."""


class VerificationError(LabError):
    """A numerical or logical invariant that the protocol demands does not hold."""


class AuditError(LabError):
    """Recomputing the evidence gave something other than what was recorded."""
