"""The sweep: finds what died or got lost on the way, and repairs it; deletes what is past its time.

tasks           which there are, when each is due; one process at a time does each
round           one task's turn: bounded in time, one broken run stops no other
walk            the runs that something must be moving, slice by slice
stalls          attempts that run past their timeout
lost_messages   due steps whose message is gone
expired_waits   waits past their deadline
removed_steps   waits on steps that their class has removed
batches         batches that ended and did not finish; fan-outs that were not told
gauge           how many runs are where, and how many are stuck
retention       ended runs, finished batches, archived messages

A repair finds without a lock, looks again under the run's, acts, and counts.
"""
