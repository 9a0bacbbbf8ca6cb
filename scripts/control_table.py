"""Print the table of AWS Security Hub controls, or replace it between its markers in a file.

python scripts/control_table.py [infra/policy/README.md]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "infra" / "policy"))

from rules import RULES
from rules.controls import table

BEGIN, END = "<!-- controls -->", "<!-- /controls -->"


def main() -> None:
    """Print the table, or write it."""
    if len(sys.argv) == 1:
        print(table(RULES))
        return
    file = Path(sys.argv[1])
    head, _, remainder = file.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = remainder.partition(END)
    file.write_text(f"{head}{BEGIN}\n{table(RULES)}\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
