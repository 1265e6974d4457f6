"""Records of a schema registry as columns: framing, and a module for each format."""
