"""The errors of the command line, in addition to those of the lock and the writers. Each is printed as one sentence.

An error has a class of its own if code or a test catches it. Every other error is a CommandError or a BadInputError.

::

    SluiceError                                    (lock_manager.errors)
    ├── CommandError (RuntimeError)                a command failed: exit code 1
    ├── BadInputError (ValueError)                 an argument or an input file cannot be used: exit code 2
    ├── AuditError (ValueError)                    no such table, or no such column
    ├── LogAccessError (RuntimeError)              a table's log cannot be listed or read
    ├── BreakError (RuntimeError)                  sluice break: no holder matches the options
    ├── PartitionNameError (ValueError)            a partition name that is not COLUMN=VALUE/COLUMN=VALUE
    ├── TokenError (ValueError)                    a fencing token that is not a number
    ├── ScratchObjectError (RuntimeError)          sluice doctor: the store refuses a request, or does not answer
    ├── DistributionError (RuntimeError)           the zip for --py-files cannot be built
    ├── JarsError (RuntimeError)                   jars are missing, or differ from the pinned ones
    ├── SparkSubmitError (RuntimeError)            spark-submit was not found
    ├── FlightsError (RuntimeError)                the demo's data set is not installed
    ├── OutputFolderError (ValueError)             the output folder has other files, or cannot be written
    ├── LocalS3Error (RuntimeError)                the embedded S3 failed
    ├── ChosenS3Error (RuntimeError)               the user's S3 failed
    └── HdfsFolderError (RuntimeError)             the user's HDFS failed
"""

from __future__ import annotations

from lock_manager import SluiceError


class CommandError(SluiceError, RuntimeError):
    """A command failed. The exit code is 1."""


class BadInputError(SluiceError, ValueError):
    """An argument or an input file cannot be used. The exit code is 2."""


class AuditError(SluiceError, ValueError):
    """There is no Delta table at the location, or the table lacks a column that was named."""


class LogAccessError(SluiceError, RuntimeError):
    """A table's log cannot be listed or read, or its location is of a kind that cannot be read. The exit code is 2."""


class BreakError(SluiceError, RuntimeError):
    """The table is locked, but no holder has the partition or the token that was named."""


class PartitionNameError(SluiceError, ValueError):
    """The name of a partition is not of the form ``COLUMN=VALUE/COLUMN=VALUE``."""


class TokenError(SluiceError, ValueError):
    """A fencing token is not a number."""


class ScratchObjectError(SluiceError, RuntimeError):
    """The store refused a request for a scratch object, or did not answer."""


class DistributionError(SluiceError, RuntimeError):
    """The zip cannot be built, because one of its packages is not installed as files."""


class JarsError(SluiceError, RuntimeError):
    """Spark and Delta are not a tested pair, or the jars are missing, unresolved or not the pinned ones."""


class SparkSubmitError(SluiceError, RuntimeError):
    """``spark-submit`` was not found, because PySpark is not installed or ``SPARK_HOME`` is wrong."""


class FlightsError(SluiceError, RuntimeError):
    """The data set is not installed, or its key is not unique."""


class OutputFolderError(SluiceError, ValueError):
    """The output folder contains files that are not the command's own, or cannot be written."""


class LocalS3Error(SluiceError, RuntimeError):
    """The embedded S3 could not be started, does not run, or refused a bucket."""


class ChosenS3Error(SluiceError, RuntimeError):
    """The endpoint is malformed, or the user's S3 does not answer or refuses a request for the bucket or prefix."""


class HdfsFolderError(SluiceError, RuntimeError):
    """The user's HDFS does not answer, or refuses a request for the demo's folder."""
