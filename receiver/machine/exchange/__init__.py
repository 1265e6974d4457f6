"""What every part uses: actions, open requests and their delays, the contact with the driver, recent errors."""
