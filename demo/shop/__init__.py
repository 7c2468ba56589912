"""The shop: Flask and SQLAlchemy, with pgbus for what must not be lost.

models        vendors, products, orders
workflows     what happens to an order, and to a shelf that runs empty
receipts      a job
gateway       the payment gateway, which is another company's
app           settings and connections; `create_app` and `bus`
views         the pages and the two calls that customers make
"""
