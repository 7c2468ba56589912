"""The DBOS side of the signal figure: one workflow that waits for one message after the other."""

from __future__ import annotations

import sys

from dbos import DBOS, DBOSConfig, SetWorkflowID

from bench.probe import reached

TOPIC, WORKFLOW_ID = "go", "receiver"
LONG_SECONDS = 600


@DBOS.workflow()
def receive() -> None:
    """Report that it is there, then each message."""
    reached()
    while DBOS.recv(TOPIC, timeout_seconds=LONG_SECONDS) is not None:
        reached()


def main(url: str) -> None:
    config = DBOSConfig(name="bench", system_database_url=url, log_level="WARNING")
    DBOS(config=config)
    DBOS.launch()
    with SetWorkflowID(WORKFLOW_ID):
        DBOS.start_workflow(receive).get_result()


if __name__ == "__main__":
    main(sys.argv[1])
