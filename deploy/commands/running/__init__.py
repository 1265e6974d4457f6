"""Commands that run and stop services: up, driver, agent, receiver, stop."""
