"""The append job; ``spark-submit … writer_jobs/append.py --help`` describes it."""

import sys
from pathlib import Path

if __package__ in (None, ""):
    # Run as a script: the packages next to this folder can be imported; the modules in this folder cannot hide others.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

try:
    from writer_jobs.job.append.load import JOB
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] not in ("writer_jobs", "lock_manager", "kazoo", "puresasl"):
        raise
    print(f"append.py: {missing}: give spark-submit the --py-files that `sluice submit-args` prints", file=sys.stderr)
    sys.exit(2)

#: Runs the job with a command line, and returns its exit code.
main = JOB.run

if __name__ == "__main__":
    sys.exit(JOB.run_as_program())
