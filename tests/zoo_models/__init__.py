"""The models behind ``zoo.py``: one file per kind, each ending in its ``ENTRIES``.

Importing a file of this package imports torch and nothing heavier; libraries such as transformers
are imported when one of their entries is built.
"""
