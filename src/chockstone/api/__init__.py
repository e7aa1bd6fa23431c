"""HTTP in, HTTP out: decode, authorise, submit, wait, encode. One file per resource, no torch.

To add an endpoint, write its messages in a file of ``wire`` and its route in a file here.
"""
