"""What a driver answers over HTTP: to receivers and agents, to operators, to observers, and to scrapes."""
