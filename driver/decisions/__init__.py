"""Decision logic of the driver: functions of their arguments only, without I/O and without a clock."""
