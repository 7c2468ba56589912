"""A small shop on pgbus, and what runs it on one machine: `python -m demo`.

shop          the host application, as an application of your own would look
__main__      starts the database, the workers and the shop, and stops them
customer      places orders over HTTP
trail         prints what runs do
"""
