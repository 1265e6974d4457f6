"""``forebay top``: the stream at a glance, live in a terminal.

| module | holds |
| --- | --- |
| ``screen`` | what is shown, and what a key changes: values, no I/O |
| ``view`` | the screen as text of a given size |
| ``feed`` | the thread that receives overviews and lists from the driver |
| ``keys`` | keys of a terminal |
| ``command`` | the command |
"""
