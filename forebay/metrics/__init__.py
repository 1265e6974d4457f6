"""Metrics of a service, in Prometheus' text format: definitions, values, and the route ``/metrics``."""
