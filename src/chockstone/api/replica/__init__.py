"""An API replica: one more process that serves the API, beside the one server that has the engine.

It answers reads from the shared catalog and forwards all other requests to the engine. It keeps no state: when a
replica dies, its clients connect again elsewhere. Must not know lanes, journals, stores or workers.
"""
