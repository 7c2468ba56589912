"""What pgbus keeps in PostgreSQL, and every statement that reads or writes it.

schema        the tables
functions/    the hot path and the queue, in PL/pgSQL; made anew by each migration
database      connections, own and the host's; statements run the same on both
starts, claims, endings, transitions
              the only modules that change a status (and send the message with it): a run
              begins, a worker claims an attempt, ends it, a verb from outside moves the run
trail         the events they write
runs, reattempts, messages, jobs, definitions, processes    one noun each
migrate, revision, pgmq           what `pgbus migrate` does
"""
