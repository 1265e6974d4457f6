"""The web page of the driver: static files, and the routes that serve them. The page asks only the routes below ``/v1``."""
