"""Decision logic for the findings of a scan of block segments: which segments to delete, and what to do with damage. Without
I/O."""
