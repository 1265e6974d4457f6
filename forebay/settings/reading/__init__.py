"""Reading of the file and of environment variables: into settings, or into a list of mistakes."""
