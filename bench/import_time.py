"""What an import costs in a fresh interpreter: seconds inside it, and modules it brought."""

from __future__ import annotations

import json
import subprocess
import sys

OURS = "import pgbus"
REFERENCE = "import sqlalchemy.orm, psycopg"
UNWANTED = ("flask", "plotly", "mcp", "pgmq")

SCRIPT = """
import json, sys, time
began = time.perf_counter()
{statement}
elapsed = time.perf_counter() - began
print(json.dumps([elapsed, [name for name in {unwanted!r} if name in sys.modules]]))
"""


def measure_import(statement: str) -> tuple[float, list[str]]:
    """Return the milliseconds the statement took and the unwanted modules it loaded."""
    script = SCRIPT.format(statement=statement, unwanted=UNWANTED)
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    elapsed, loaded = json.loads(out)
    return elapsed * 1000, loaded
