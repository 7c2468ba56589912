"""The processes that serve a bus.

supervisor ──starts──► worker (n)     take, perform, keep invisible what runs
           ──starts──► dispatcher     the timer, the reaping of the dead

listening     the LISTEN connection, and what wakes a worker
presence      a process's row and heartbeat
background    a worker and a dispatcher inside a host's own process
"""
