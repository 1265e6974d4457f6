"""The tracker's decisions about blocks: which are accepted (``reports``), which hosts hold them without a WAL (``replicas``), and
what may be deleted (``deletion``)."""
