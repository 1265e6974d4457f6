"""One Spark session for all tests of RDDs and streams without receivers: the engines' one."""

from tests.engines.conftest import spark

__all__ = ["spark"]
