"""From a file and environment variables to settings, or to the list of mistakes."""
