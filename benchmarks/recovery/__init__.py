"""The recovery benchmark: what it costs that crashes go unnoticed, how long they last, and what idle runs take.

It uses the server as clients do, kills it as crashes do, and looks inside only to count recovery archives and
parked runs, and to see how much memory they take.
"""
