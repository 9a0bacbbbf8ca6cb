"""What the command line raises on purpose, beside what the lock and the writers raise: one sentence each to the user.

::

    SluiceError                                    (lock_manager.errors)
    ├── VerifyError (ValueError)                   sluice verify: no such table or column
    ├── TableLogError (ValueError)                 sluice log: no such table
    ├── LogAccessError (RuntimeError)              a table whose log cannot be listed
    ├── BreakError (RuntimeError)                  sluice break: not the holder that was named
    ├── PartitionNameError (ValueError)            a partition that is not named as its folder is
    ├── TokenError (ValueError)                    a fencing token that is no number
    ├── TrialError (RuntimeError)                  sluice doctor: the store refuses, or does not answer
    ├── AdoptionError (RuntimeError)               sluice doctor: the table's properties cannot be read
    ├── StackOutputError (ValueError)              sluice config from-stack: not a stack's outputs
    ├── ConfigFileError (OSError)                  a file of settings cannot be written
    ├── ConfigExistsError (ValueError)             there is a file of settings already
    ├── DistributionError (RuntimeError)           the zip for a cluster cannot be built
    ├── JarsError (RuntimeError)                   jars that are missing, or not the ones that were pinned
    ├── SparkSubmitError (RuntimeError)            PySpark is not installed
    ├── SparkStartError (RuntimeError)             Spark does not start
    ├── FlightsError (RuntimeError)                the demo's data set is not installed
    ├── PageError (OSError)                        a page cannot be written
    ├── OutputFolderError (ValueError)             the output folder is not the command's own
    ├── LocalS3Error (RuntimeError)                the embedded S3 could not be started
    └── ChosenS3Error (RuntimeError)               the S3 that was named does not answer
"""

from __future__ import annotations

from lock_manager import SluiceError


class VerifyError(SluiceError, ValueError):
    """The question makes no sense: no such table, no such column."""


class TableLogError(SluiceError, ValueError):
    """There is no such table."""


class LogAccessError(SluiceError, RuntimeError):
    """A table that is not there, or whose log cannot be listed."""


class BreakError(SluiceError, RuntimeError):
    """Nobody holds what was to be broken, but somebody else is in the way, or it is another holder by now."""


class PartitionNameError(SluiceError, ValueError):
    """A partition that is not named as its folder is."""


class TokenError(SluiceError, ValueError):
    """A fencing token that is no number."""


class TrialError(SluiceError, RuntimeError):
    """The store refuses, or does not answer."""


class AdoptionError(SluiceError, RuntimeError):
    """The table's properties cannot be read."""


class StackOutputError(SluiceError, ValueError):
    """The outputs are no such JSON, or one that is needed is not among them."""


class ConfigFileError(SluiceError, OSError):
    """A file cannot be written."""


class ConfigExistsError(SluiceError, ValueError):
    """There is a file already, and nobody said that it may go."""


class DistributionError(SluiceError, RuntimeError):
    """The zip cannot be built: a package that belongs in it is not installed."""


class JarsError(SluiceError, RuntimeError):
    """The jars are missing, could not be resolved, or are not the ones that were pinned."""


class SparkSubmitError(SluiceError, RuntimeError):
    """PySpark is not installed."""


class SparkStartError(SluiceError, RuntimeError):
    """The small Spark of a command does not start."""


class FlightsError(SluiceError, RuntimeError):
    """The data set is not installed, or is another one."""


class PageError(SluiceError, OSError):
    """A page cannot be written."""


class OutputFolderError(SluiceError, ValueError):
    """The output folder holds something that is not the command's own, or cannot be written."""


class LocalS3Error(SluiceError, RuntimeError):
    """The embedded S3 could not be started, or refused a bucket."""


class ChosenS3Error(SluiceError, RuntimeError):
    """The S3 does not answer, or refuses the scratch place."""
