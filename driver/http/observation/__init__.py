"""Answers for observers, and their routes: people, the page, commands, the Python client, monitoring."""
