"""``forebay offsets``: show, export, import and reset offsets, and accept gaps."""
