"""Files that show which driver leads, and which timeline's journal writes to the WAL."""
