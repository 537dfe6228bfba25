"""How to train, by names: losses, optimizers, schedules, metrics and transforms.

A job that is made of these needs no foreign Python. Checking one imports no torch, so a server can
judge what it is handed; what is built is built where the training happens.
"""
