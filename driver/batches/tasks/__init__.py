"""The code of a batch that runs inside Spark tasks."""
