"""Planning: how much memory a model, its runs and their passes will take, computed before any of them exists.

Works on the meta device, where tensors have shapes and no numbers: a model of any size is planned on any machine. It
knows nothing of workers, servers and clients.
"""
