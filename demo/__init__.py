"""A small shop on pgbus, and what runs it on one machine: `python -m demo`.

shop          the host application, as an application of your own would look
tests         its suite
__main__      starts the database, the workers and the shop, and stops them
customer      places orders over HTTP
partners      a payment provider and a forwarder, who call the shop's webhooks
trail         prints what runs do
hints         says what could be tried just now
"""
