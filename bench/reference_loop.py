"""Reference C: what the minimal durable writes of a step cost, with nothing around them.

Eight threads, a bare psycopg connection each, one prepared PL/pgSQL call per step.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import psycopg

RUNS, STEPS, THREADS = 500, 3, 8

# No foreign key and no index beyond what a claim, a trail and PGMQ's own queue need.
SCHEMA = """
CREATE TABLE runs (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  status text NOT NULL, step text NOT NULL, updated_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE attempts (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  run_id bigint NOT NULL, step text NOT NULL, attempt int NOT NULL, status text NOT NULL,
  scheduled_at timestamptz NOT NULL DEFAULT now(), ended_at timestamptz,
  UNIQUE (run_id, step, attempt));
CREATE TABLE events (
  run_id bigint NOT NULL, id bigint GENERATED ALWAYS AS IDENTITY,
  event text NOT NULL, step text NOT NULL, created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (run_id, id));
CREATE TABLE queue (
  msg_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  read_ct int NOT NULL DEFAULT 0, enqueued_at timestamptz NOT NULL DEFAULT now(),
  vt timestamptz NOT NULL, message jsonb);
CREATE INDEX ON queue (vt);

CREATE FUNCTION advance(
  p_run bigint, p_attempt bigint, p_message bigint, p_step text, p_next text,
  OUT attempt bigint, OUT message bigint) LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM queue WHERE msg_id = p_message;
  UPDATE runs SET status = 'ready', step = p_next, updated_at = now() WHERE id = p_run;
  UPDATE attempts SET status = 'completed', ended_at = now() WHERE id = p_attempt;
  INSERT INTO attempts (run_id, step, attempt, status) VALUES (p_run, p_next, 1, 'scheduled')
    RETURNING id INTO advance.attempt;
  INSERT INTO events (run_id, event, step)
    VALUES (p_run, 'step_completed', p_step), (p_run, 'step_scheduled', p_next);
  INSERT INTO queue (vt, message) VALUES (now(), jsonb_build_object('workflow_id', p_run))
    RETURNING msg_id INTO advance.message;
END $$;
"""

SEED = """
WITH run AS (
  INSERT INTO runs (status, step) SELECT 'ready', 'step_1' FROM generate_series(1, %s) RETURNING id
), attempt AS (
  INSERT INTO attempts (run_id, step, attempt, status)
    SELECT id, 'step_1', 1, 'scheduled' FROM run RETURNING run_id, id
), message AS (
  INSERT INTO queue (vt, message) SELECT now(), jsonb_build_object('workflow_id', id) FROM run
    RETURNING msg_id, (message->>'workflow_id')::bigint AS run_id
)
SELECT run_id, attempt.id, msg_id FROM attempt JOIN message USING (run_id) ORDER BY run_id
"""

ADVANCE = "SELECT * FROM advance(%s::bigint, %s::bigint, %s::bigint, %s::text, %s::text)"


def seed(url: str) -> list[tuple[int, int, int]]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(SCHEMA)
        return connection.execute(SEED, [RUNS]).fetchall()


def drain(url: str, runs: list[tuple[int, int, int]], start: threading.Barrier) -> None:
    with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:
        start.wait()
        for run, attempt, message in runs:
            state = attempt, message
            for n in range(1, STEPS + 1):
                parameters = [run, *state, f"step_{n}", f"step_{n + 1}"]
                (state,) = connection.execute(ADVANCE, parameters).fetchall()
        start.wait()


def main(url: str) -> dict[str, float]:
    runs = seed(url)
    start = threading.Barrier(THREADS + 1)
    for n in range(THREADS):
        threading.Thread(target=drain, args=(url, runs[n::THREADS], start)).start()
    start.wait()
    began = time.perf_counter()
    start.wait()
    return {"steps_per_second": RUNS * STEPS / (time.perf_counter() - began)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
