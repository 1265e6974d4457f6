"""Keyed state of jobs: rows by key in shards, each shard a base file and deltas, all named by a manifest (docs/FORMAT.md).

::

    <stream>/state/<name>/<batch id>-<epoch>-<run>/<shard>-<digest>.arrow
    <stream>/state/<name>/<batch id>-<epoch>-<run>/manifest.json

A run of a batch writes into a folder of its own, named after the driver's journal epoch and a number that this driver uses once.
A manifest lists all files of one version of a state. It counts only if the journal names it, which it does in the event that
completes the batch. Files that no such manifest lists are garbage.

These modules run inside Spark tasks. They import neither the driver's decisions nor its journal.
"""
