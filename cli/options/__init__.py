"""Options: names, help, defaults, settings, and rules on which options have an effect; no logs are read here."""
