#!/bin/sh
# Print the Python for .venv, or fail with one sentence that names what is missing. It also checks the JDK, whose absence
# would otherwise show late. PYTHON=/path/to/python selects a Python.
set -u
complain() { echo "sluice: $1" >&2; exit 1; }

supported='import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
python=""
for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
    if "$candidate" -c "$supported" >/dev/null 2>&1; then python=$candidate; break; fi
done
if [ -z "$python" ]; then
    found=$("${PYTHON:-python3}" --version 2>&1 | head -n 1) || found="none"
    complain "needs Python 3.11, 3.12 or 3.13 with venv and ensurepip (Debian: python3.11-venv; found: $found); install one, or name it: make PYTHON=/path/to/python3.11"
fi

if [ -n "${JAVA_HOME:-}" ]; then
    javac=$JAVA_HOME/bin/javac
    [ -x "$javac" ] || complain "JAVA_HOME=$JAVA_HOME holds no JDK (no bin/javac); point it at a JDK 17 or newer, or unset it"
else
    javac=$(command -v javac) || complain "needs a JDK 17 or newer and finds no javac on PATH; install one (Debian: apt-get install openjdk-17-jdk-headless) or set JAVA_HOME"
fi
version=$("$javac" -version 2>&1 | sed -n 's/^javac \([0-9]*\).*/\1/p')
[ "${version:-0}" -ge 17 ] || complain "needs a JDK 17 or newer; $javac is version ${version:-unknown}"

echo "$python"
