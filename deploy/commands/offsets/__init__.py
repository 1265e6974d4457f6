"""`forebay offsets`: positions shown, written to a file, set, begun anew."""
