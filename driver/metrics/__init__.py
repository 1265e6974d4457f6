"""The driver's metrics: definitions, what is counted, what a scrape reads, and the list of all targets for Prometheus."""
