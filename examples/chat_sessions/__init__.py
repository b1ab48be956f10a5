"""A chat whose sessions survive their nodes: Starlette on hypercorn, any number of nodes, no sticky routing.

`chat` is the handler, `app` the web application, `node` one process of it, `demo` two of them, a client, and a kill.
docs/sessions.md walks through it.
"""
