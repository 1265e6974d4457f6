"""``forebay doctor``: diagnosis of this machine and of everything that a stream needs; each finding names the next step.

| module | holds |
| --- | --- |
| ``findings`` | a finding, and the conversion of the checks of ``forebay validate`` |
| ``machine`` | Python, packages, Java, limits |
| ``brokers`` | brokers, their versions, rights, replicas, times of the newest records |
| ``stores`` | speed, space and clock of the stores |
| ``services`` | ports, the running driver, its clock, the hosts of local copies |
| ``command`` | the command |
"""
