"""The web console: pages for people who operate and use a server, at ``/console``.

Server-rendered pages (Jinja2) with htmx, uPlot and a few small scripts, all served from here. Pages ask the functions
that answer ``/api``, so who may see what is decided in one place. The room knows no SQL and no torch.
"""
