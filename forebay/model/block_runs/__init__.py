"""Decodes successive small blocks together: ``decoding``, over ``joining`` of batches and ``messages`` of Arrow streams."""
