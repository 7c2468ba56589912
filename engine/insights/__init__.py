"""Read-only questions, one noun a module: whoever shows runs asks here.

runs        a page of the list, one run with all that happened to it
attempts    the tries of its steps, with where their time went
events      its audit trail

Answers are frozen and free of presentation; each takes a connection and writes nothing.
"""
