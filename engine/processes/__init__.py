"""The processes that serve a bus.

supervisor ──starts──► worker (n)     take, perform, keep invisible what runs
           ──starts──► dispatcher     the timer, the reaping of the dead, the sweep

readiness     what each needs: a database that answers, migrated to this code
ending        how each is told to end
presence      a process's row and heartbeat
listening     the LISTEN connection, and what wakes a worker
in_flight     what a worker has in hand, and its messages' heartbeat
background    a worker and a dispatcher inside a host's own process
"""
