"""``forebay debug``: what another person needs to understand a stream, collected without secrets.

| module | holds |
| --- | --- |
| ``group`` | the commands |
| ``bundle`` | the archive: each part is text, and every text is searched for secrets before it is written |
| ``secrets`` | the secrets that configuration, files and environment hold, to be found in other texts |
| ``parts`` | the parts: settings, answers of driver and agent, journal, processes, logs |
"""
