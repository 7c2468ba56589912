"""Read-only questions, one noun a module: whoever shows runs asks here.

runs        a page of the list, one run with all that happened to it
attempts    the tries of its steps, with where their time went
signals     those it got, with what took them; the names its class waits for
events      its audit trail
liveness    which ongoing runs nothing will move on, and who serves them
deployment  how the loaded classes fit the ongoing runs
counts      how many are in which state, by class
stuck       those that do not move on by themselves: how many, grouped by cause, one by one

Answers are frozen and free of presentation; each takes a connection and writes nothing.
"""
