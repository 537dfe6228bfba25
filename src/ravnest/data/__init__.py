"""Datasets as columns of numbers in shards: written by a requester, read in parts by workers.

A row is one example; a column (field) holds a tensor of the same type and shape for every row. What
a model makes of a column is said by a recipe and not known here.
"""
