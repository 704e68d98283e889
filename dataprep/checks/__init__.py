"""What can be wrong with a ``.bin``/``.idx`` pair, and how it is found. `stages.verify` puts it together.

rules   every problem that has a name: how bad, what a training does with it, what mends it
report  what was found out about one prefix
"""
