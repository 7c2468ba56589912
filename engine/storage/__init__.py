"""What pgbus keeps in PostgreSQL, and every statement that reads or writes it.

schema        the tables
functions/    the hot path and the queue, in PL/pgSQL; made anew by each migration
database      connections, own and the host's; statements run the same on both
transitions   the only module that changes a status (and sends the message with it)
runs, messages, definitions, processes    one noun each
migrate, pgmq                    what `pgbus migrate` does
"""
