#!/bin/sh
# Print the Python for .venv, or fail with one sentence that names the missing program. Also check the JDK, which the
# set-up needs later. PYTHON=/path/to/python selects a Python.
set -u
complain() { echo "sluice: $1" >&2; exit 1; }

supported='import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
python=""
for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
    if "$candidate" -c "$supported" >/dev/null 2>&1; then python=$candidate; break; fi
done
if [ -z "$python" ]; then
    default_version=$("${PYTHON:-python3}" --version 2>/dev/null) || default_version="none"
    complain "needs Python 3.11, 3.12 or 3.13 with venv and ensurepip (Debian: python3.11-venv; found: $default_version); install one, or name it: make PYTHON=/path/to/python3.11"
fi

if [ -n "${JAVA_HOME:-}" ]; then
    javac=$JAVA_HOME/bin/javac
    [ -x "$javac" ] || complain "JAVA_HOME=$JAVA_HOME has no bin/javac, so it is not a JDK; point it at a JDK 17 or newer, or unset it"
else
    javac=$(command -v javac) || complain "needs a JDK 17 or newer, and there is no javac on PATH; install one (Debian: apt-get install openjdk-17-jdk-headless) or set JAVA_HOME"
fi
version=$("$javac" -version 2>&1 | sed -n 's/^javac \([0-9]*\).*/\1/p')
[ "${version:-0}" -ge 17 ] || complain "needs a JDK 17 or newer, and $javac is version ${version:-unknown}; install a newer one, or set JAVA_HOME"

echo "$python"
