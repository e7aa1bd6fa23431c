"""Downloads: archives and their files over HTTP, behind signed URLs, with byte ranges.

Must not know how archives are written.
"""
