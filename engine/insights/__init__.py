"""Read-only questions, one noun a module: whoever shows runs asks here.

reading     one look at the database: all that a page asks is of one moment
runs        a page of the list, and how many there are of each status; selection, which those are
detail      one run with all that happened to it
attempts    the tries of its steps; phases, where the time of each went
signals     those it got, with what took them; the names its class waits for
events      its audit trail
cursors     places in lists, as texts
documents   what of its arguments, outputs and payloads is small enough to come along
resume      what a resume would do
stuck       the runs that do not move on by themselves: how many, grouped by cause, one by one
counts      how many are in which state, by class
windows     a stretch of time up to now, and its buckets on a wall clock
throughput  how many started and ended, bucket by bucket
classes     how every workflow class is doing, one row each
performance how one is doing; figures, how its attempts went; headline, what changed for the worse
batches     a page of them; one with its jobs
queues      what waits where, for how long, and what is paused; messages, what one is
jobs        those that are enqueued, and those that failed
dead_letters   what failed too often, with why
processes   who works, and on what
health      where the bus itself is in trouble
liveness    which ongoing runs nothing will move on
deployment  how the loaded classes fit the ongoing runs

Answers are frozen and free of presentation; each takes a connection and writes nothing.
"""
