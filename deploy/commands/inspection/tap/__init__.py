"""``forebay tap``: records as they are taken in, sampled and filtered.

| module | holds |
| --- | --- |
| ``paths`` | a path into a JSON document, and conditions on it |
| ``selection`` | which records are wanted, and how many of a block are looked at |
| ``shown`` | a record as text, JSON or hex |
| ``command`` | the command |
"""
