"""Tools for AI clients, over the Model Context Protocol: what an operator may ask and, with leave, do.

http, command   `http.create_app`, for an ASGI server; `pgbus mcp`, on standard input and output
server          which tools there are; how a call is checked, made and answered
workflows, service, actions   the tools: runs and classes; queues, processes and health; the verbs
tool            what a tool is: a model of its arguments, which answers
answers         the insights as JSON, without what stays secret

The SDK takes a second to import, so this package imports nothing by itself.
"""
