"""What crosses sockets: typed messages, their bytes, and the streams that carry them.

Knows nothing about models, schedules or weights.
"""
