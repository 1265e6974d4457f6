"""Blocks of records before they are stored: cut from polls (``pending_block``), counted until the driver answers
(``sealed_blocks``), encoded (``encoded_block``).
"""
