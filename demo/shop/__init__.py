"""The shop: Flask and SQLAlchemy, with pgbus for what must not be lost.

models        vendors, products, orders, payments
workflows     what happens to an order, and to a shelf that runs empty
receipts      a job
vendors       jobs of which an order waits for many
gateway       the payment gateway, which is another company's
mailboxes     the vendors' mailboxes, which are other companies'
app           settings and connections; `create_app` and `bus`
views         the pages, and the calls of customers
webhooks      the calls of the payment provider and the forwarder
progress      how far an order is, in words for its customer
"""
